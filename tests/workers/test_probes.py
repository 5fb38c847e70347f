"""Which kind of probe a request is: an example of each pattern that looks back at a word, and of what only resembles it."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PROBES = {
    "secret files": (
        "/.env", "/.env.bak?x", "/a/.git/config", "/wp-config.php.bak", "/id_rsa",
        "/.env2.old", "/.kube/config", "/x/terraform.tfstate", "/.config/gcloud/x", "/.terraform/x",
    ),
    "known exploits": (
        "/vendor/x/my-eval-stdin.php", "/?s=/index/invokefunction&a", "/?-d+allow_url_include=1", "/x?auto_prepend_file=y",
        "/?f=call_user_func_array", "/?x=${jndi:ldap}", "/?class.module.classloader.x=1", "/user?element_parents=a/b/#value",
        "/?x=php://input", "/?x=java.lang.runtime", "/a/..;/b", "/default.ida?x", "/shell?cd+/tmp",
        "/x?u=http://169.254.169.254/latest", "/latest/meta-data/iam", "/x.php?a=php://filter/y", "/?lang=x&+config-create+/",
        "/cgi-bin/\u2028/bin/sh", "/device.rsp?opt=sys", "/goform/x", "/cgi-bin/nas_sharing.cgi?user=x",
        "/setupwizard.aspx/x", "/mgmt/tm/util/bash", "/developmentserver/metadatauploader", "/computemetadata/v1/x",
    ),
    "web shells": ("/wp-content/uploads/2024/x.php", "/alfa.php", "/wso-new.php?a"),
    "file traversal": (
        "/etc/passwd", "/?f=/etc/shadow", "/?f=file:///etc/passwd", "/../../win.ini", "/?f=c:/windows/win.ini",
        "/../etc/passwd", "/x?f=..;etc/shadow", "/../windows/system.ini", "/../boot.ini", "/a..;/proc/self/maps", "/../x.env",
        "/../a.wp-config", "/../\u2028/etc/passwd", "/@fs/etc/passwd?raw??",
    ),
    "debug consoles": ("/_profiler/x", "/?xdebug_session_start=phpstorm"),
    "injected code": (
        "/?q=union select(1", "/?q=union+all+select+1", "/?q=select+x from information_schema", "/?q=sleep(5)",
        "/?q=pg_sleep(5)", "/?q=benchmark(9", "/?q=waitfor delay '0", "/?q='or'1'='1", "/?q=1 and 1=1", "/?q=1+or+2=2",
        "/?where=x&q=1 or 1=1", "/query?f=json&where=name='x'+or+1=1", "/ows?cql_filter=a or 1=1",
        "/?where=x&q='and'1=1", "/?q=<script>alert", "/?q=x onerror=alert(", "/?q=x onload=y alert(", "/?q=;wget http://x",
        "/?q=|cat /x", "/?q=base64_decode(", "/?q=phpinfo(", "/?q=<?php system(", "/?q=;exec(", "/?q=`eval(",
    ),
    "WordPress": ("/wp-login.php", "/blog/wp-content/x/y.php"),
    "database administration": ("/phpmyadmin", "/x/old-php-my-admin/", "/phpmy-admin", "/pma/", "/_pma2", "/mysql-manager"),
    "backups": ("/backup.zip", "/index.php~", "/a/b.jsp.old"),
    "folders by guessing": ("/admin", "/backup/", "/login.php"),
    None: (
        "/", "/eval/stdin.php", "/eval-stdin.txt", "/invokefunction", "/call_user_func_array", "/x?user_func_array",
        "/?x.module.classloader", "/?parents=#value", "/?x.lang.runtime", "/x/etc/passwd", "/?f=a/etc/passwd",
        "/?f=/etc/passwd.html", "/?f=d:/windows/win.ini", "/?x_session_start", "/?q=reunited select(1", "/?q=asleep(x",
        "/?q=distinct(1", "/?q=for delay '0", "/?q=land 1=1", "/?q=x2or 1=1", "/?q=bonerror=alert(", "/?q=decode(",
        "/?q=filesystem(", "/php/my/admin", "/x?phpmy-admin", "/a/b?c.php~", "/b.jsp.older", "/x/admin",
        "/..etc/passwd", "/../etcpasswd", "/../files/sst.envisat.nc", "/a../x/passwd", "/../config", "/docs/latest/meta-data/",
        "/query?where=depth>0 and 1=1&f=json", "/ows?cql_filter=name='x' and 1=1", "/query?f=json&where=name='x'+and+1=1",
        "/erddap/tabledap/x.csv?time&latitude&distinct()",
    ),
}  # fmt: skip


def test_each_is_of_its_kind(spark: Any) -> None:
    from pyspark.sql import functions as f

    from workers.api_requests.detect.spam import probes

    far = [
        ("/?../", "etc/passwd"),
        ("/?", "invokefunction"),
        ("/?", "allow_url_include"),
        ("/", "eval-stdin.php"),
        ("/", "phpmyadmin"),
        ("/", ".php~"),
    ]
    texts = [(text, kind) for kind, ones in PROBES.items() for text in ones]
    kinds = dict(zip(far, ("file traversal", *["known exploits"] * 3, "database administration", "backups"), strict=True))
    texts += [
        (first + last.rjust(probes.PATH_LIMIT - len(first), filler), kind)
        for (first, last), kind in kinds.items()
        for filler in ("a", "\U0001f600")  # which is two characters to Java
    ]
    asked = spark.createDataFrame(texts, "text string, kind string")
    seen = asked.withColumn("family", probes.family(f.col("text")))
    rows = seen.withColumn("tells", probes.is_telling(f.col("text"), f.col("family"))).collect()
    found = {row.text: None if row.family is None else probes.FAMILIES[row.family].label for row in rows}
    assert found == dict(texts)
    assert {row.kind for row in rows if row.tells} == set(PROBES) - {None, probes.GUESSES}


def test_a_target_is_looked_at_without_its_escapes(spark: Any) -> None:
    from pyspark.sql import functions as f

    from workers.api_requests.detect.spam import probes

    seen = {
        "/%2Eenv": "/.env", "/%252Eenv": "/.env", "/%25%32%45env": "/.env", "/%%32%65env": "/.env", "/.ENV%0a": "/.env",
        "/a%5Cb": "/a/b", "/100%": "/100%", "/%zz%u0041": "/%zz%u0041", "/a+b%2Bc": "/a+b+c",
        "/a\\b": "/a/b", "/a\nb": "/a b", "/a\rb\r": "/a b", "/a\0b": "/a b", "/a ": "/a", "/a  b": "/a  b", "/a%20": "/a",
    }  # fmt: skip
    asked = spark.createDataFrame([(path, "") for path in seen], "path string, query string")
    asked = asked.withColumn("unescaped", probes.unescaped(f.col("path"), f.col("query")))
    rows = asked.select("path", probes.target(f.col("unescaped")).alias("target")).collect()
    assert {row.path: row.target for row in rows} == seen
