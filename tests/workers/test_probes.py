"""Which kind of probe a request is: an example of each pattern that looks back at a word, and of what only resembles it."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PROBES = {
    "secret files": ("/.env", "/.env.bak?x", "/a/.git/config", "/wp-config.php.bak", "/id_rsa"),
    "known exploits": (
        "/vendor/x/my-eval-stdin.php", "/?s=/index/invokefunction&a", "/?-d+allow_url_include=1", "/x?auto_prepend_file=y",
        "/?f=call_user_func_array", "/?x=${jndi:ldap}", "/?class.module.classloader.x=1", "/user?element_parents=a/b/#value",
        "/?x=php://input", "/?x=java.lang.runtime", "/a/..;/b", "/default.ida?x", "/shell?cd+/tmp",
    ),
    "web shells": ("/wp-content/uploads/2024/x.php", "/alfa.php", "/wso-new.php?a"),
    "file traversal": ("/etc/passwd", "/?f=/etc/shadow", "/?f=file:///etc/passwd", "/../../win.ini", "/?f=c:/windows/win.ini"),
    "debug consoles": ("/_profiler/x", "/?xdebug_session_start=phpstorm"),
    "injected code": (
        "/?q=union select(1", "/?q=union+all+select+1", "/?q=select+x from information_schema", "/?q=sleep(5)",
        "/?q=pg_sleep(5)", "/?q=benchmark(9", "/?q=waitfor delay '0", "/?q='or'1'='1", "/?q=1 and 1=1", "/?q=1+or+2=2",
        "/?q=<script>alert", "/?q=x onerror=alert(", "/?q=x onload=y alert(", "/?q=;wget http://x", "/?q=|cat /x",
        "/?q=base64_decode(", "/?q=phpinfo(", "/?q=<?php system(", "/?q=;exec(", "/?q=`eval(",
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
        "/erddap/tabledap/x.csv?time&latitude&distinct()",
    ),
}  # fmt: skip


def test_each_is_of_its_kind(spark: Any) -> None:
    from pyspark.sql import functions as f

    from workers.api_requests.detect.spam import probes

    far = [("/?", "invokefunction"), ("/?", "allow_url_include"), ("/", "eval-stdin.php"), ("/", "phpmyadmin"), ("/", ".php~")]
    texts = [(text, kind) for kind, ones in PROBES.items() for text in ones]
    kinds = dict.fromkeys(far[:3], "known exploits") | {far[3]: "database administration", far[4]: "backups"}
    texts += [(first + last.rjust(probes.PATH_LIMIT - len(first), "a"), kind) for (first, last), kind in kinds.items()]
    asked = spark.createDataFrame(texts, "text string, kind string")
    seen = asked.withColumn("family", probes.family(f.col("text")))
    rows = seen.withColumn("tells", probes.is_telling(f.col("text"), f.col("family"))).collect()
    found = {row.text: None if row.family is None else probes.FAMILIES[row.family].label for row in rows}
    assert found == dict(texts)
    assert {row.kind for row in rows if row.tells} == set(PROBES) - {None, probes.GUESSES}
