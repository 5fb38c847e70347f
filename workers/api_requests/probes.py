"""What scanners ask for: a table of well-known paths by what they are after. Data and columns only; `spam` judges.

A *certain* probe is one that no visitor, crawler or client of an ordinary site sends: a secret file, the entry of a known
exploit. A *possible* probe is a page that some sites do have (a WordPress login, phpMyAdmin, webmail): it counts only
where it does not exist, and only when one address looks for several of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as f

PATH_LIMIT = 512  # characters of a path or a query that are looked at; longer ones gain nothing and cost time


@dataclass(frozen=True, slots=True)
class Family:
    """One kind of thing that is looked for. ``pattern`` is matched against the lower-case, unescaped ``path?query``."""

    label: str
    certain: bool
    pattern: str


def _any(*patterns: str) -> str:
    return "|".join(f"(?:{pattern})" for pattern in patterns)


_END = r"(?:\?|\z)"

FAMILIES = (
    Family("secret files", True, _any(
        rf"(?:\A|/)\.env(?:[._~-][a-z0-9._~-]*)?/?{_END}",
        r"/\.git/(?:config|index|logs/)", r"/\.git-credentials", r"/\.aws/", r"/\.ssh/", r"/\.svn/(?:entries|wc\.db)",
        r"/\.htpasswd", rf"/id_(?:rsa|dsa|ecdsa|ed25519){_END}", r"/wp-config[^/?]*\.(?:php|bak|old|save|swp|txt|zip|orig)",
        r"/\.vscode/sftp\.json", r"/sftp-config\.json", rf"/(?:aws|awsconfig|smtp|s3cmd)\.(?:json|ini|ya?ml){_END}",
        r"/\.s3cfg", r"/credentials(?:/config)?\.json", r"/config/parameters\.ya?ml", r"/\.bash_history", r"/\.docker/config\.json",
        r"/\.netrc", rf"/(?:dump|backup|database|db)\.sql(?:\.gz|\.zip)?{_END}",
    )),
    Family("known exploits", True, _any(
        r"eval-stdin\.php", r"/phpunit/", r"/_ignition/", r"/boaform/", r"/gponform/", r"/hnap1",
        r"telerik\.web\.ui\.webresource\.axd", r"invokefunction", r"call_user_func_array", r"autodiscover\.json\?.*(?:@|powershell)",
        r"/shell\?(?:cd|wget|curl)", r"/setup\.cgi\?.*(?:cmd|todo)=", r"allow_url_include", r"auto_prepend_file",
        r"/cgi-bin/.*(?:\.\./|/bin/(?:ba)?sh)", r"/cgi-bin/luci/;", r"\$\{jndi:", r"getphpinfo\.php", r"/wp-file-manager/.*connector",
        r"/(?:alfa|wso|c99|r57)\.php", r"/actuator/(?:gateway|jolokia)", r"/nice%20ports",
    )),
    Family("web shells", True, r"/wp-content/(?:themes|uploads)/.*\.php\z"),
    Family("file traversal", True, _any(
        r"\.\./.*(?:etc/(?:passwd|shadow)|windows/|win\.ini|boot\.ini|proc/self|wp-config|\.env)", r"/etc/(?:passwd|shadow)",
        r"/proc/self/environ", r"c:[/\\]+windows",
    )),
    Family("debug consoles", True, _any(
        r"/_profiler/", r"/debug/default/view", r"/actuator/(?:env|heapdump|trace|threaddump)", r"/telescope/requests",
        r"xdebug_session_start",
    )),
    Family("injected code", True, _any(
        r"union[\s+]+(?:all[\s+]+)?select[\s+(]", r"select[\s+].*information_schema", r"(?:sleep|benchmark|pg_sleep)\(\d+",
        r"waitfor[\s+]+delay", r"'[\s+]*(?:or|and)[\s+]*'?\d+'?[\s+]*=[\s+]*'?\d", r"<script[^>]*>[^<]*(?:alert|document\.cookie)",
        r"\b(?:onerror|onload)=.*alert\(", r"[;|`][\s+]*(?:wget|curl)[\s+]+http", r"[;|][\s+]*cat[\s+]+/", r"<\?php",
        r"(?:base64_decode|system|passthru|shell_exec|phpinfo)\(",
    )),
    Family("open DNS resolvers", True, r"/(?:dns-query|resolve|query)\?(?:.*name=example\.com|.*dns=[a-z0-9_-]*b2v4yw1wbgudy29t)"),
    Family("WordPress", False, _any(
        r"/wp-login\.php", r"/wp-admin", r"/xmlrpc\.php", r"/wp-cron\.php", r"/wlwmanifest\.xml",
        r"/wp-(?:includes|content)/.*\.php",
    )),
    Family("database administration", False, _any(
        r"/[^/?]*php-?my-?admin", r"/_?pma\d*(?:/|\z)", r"/(?:my|sql|db|mysql)-?(?:admin|manager|web)", r"/(?:websql|webdb|adminer|phppgadmin)",
        r"/index\.php\?lang=en\z",
    )),
    Family("mail servers", False, _any(r"/owa(?:/|\z)", r"/ecp/", r"/autodiscover", r"/ews/", r"/mapi/", r"/roundcube", r"/zimbra")),
    Family("VPN gateways", False, _any(
        r"/remote/(?:login|fgt_lang|logincheck)", r"/dana-na/", r"/\+cscoe\+/", r"/global-protect/", r"/sslvpn", r"/vpn/index", r"/logon/logonpoint",
    )),
    Family("devices", False, _any(
        r"/cgi-bin/", r"/webui/?\z", r"/sdk\z", r"/evox/about", r"/setup\.cgi", r"/portal/redlion", r"/level/15/",
        r"/showlogin\.cc", r"/webinterface/?\z",
    )),
    Family("server consoles", False, _any(
        r"/solr/", r"/manager/(?:html|text)", r"/jmx-console", r"/web-console/", r"/zabbix", r"/geoserver/web", r"/druid/", r"/nacos/",
        r"/jenkins", r"/hudson", r"/actuator", r"/api/session/properties", r"/sugar_version\.json", r"/_cat/indices", r"/v2/_catalog",
        r"/containers/json", r"/console/login", r"/(?:php)?info\.php", r"/server-status", r"/struts2", r"/jolokia",
    )),
    Family("settings", False, _any(
        r"/\.git/?(?:head)?\z", r"/\.ds_store", r"/\.svn/?\z", r"/\.hg/", r"/(?:ws|user|app|deployment)[-_]?config\.json",
        r"/config\.(?:php|yml|yaml|ini)", r"/web\.config", r"/\.htaccess",
    )),
    Family("open DNS resolvers", False, r"/dns-query"),
)  # fmt: skip

_HARMLESS = (
    r"\A/?\z|/(?:robots\.txt|favicon[^/]*|apple-touch-icon[^/]*|sitemap[^/]*|ads\.txt|app-ads\.txt|humans\.txt|security\.txt|llms\.txt|"
    r"browserconfig\.xml|manifest\.json|site\.webmanifest|crossdomain\.xml|feed|rss|atom\.xml)/?\z|\A/\.well-known/"
)
_ASSET = r"\.(?:png|jpe?g|gif|webp|avif|svg|ico|css|js|mjs|map|woff2?|ttf|eot|otf|mp3|mp4|webm|pbf|mvt|ts|m3u8)\z"
_ESCAPES = (("%2e", "."), ("%2f", "/"), ("%5c", "/"), ("%20", " "), ("%27", "'"), ("%28", "("), ("%29", ")"), ("%3c", "<"), ("%3e", ">"),
            ("%7b", "{"), ("%7d", "}"), ("%24", "$"), ("%3a", ":"), ("%3b", ";"), ("%7c", "|"), ("%40", "@"), ("%2b", "+"))  # fmt: skip


def target(path: Column, query: Column) -> Column:
    """``path?query`` in lower case, with the escapes undone that hide a probe."""
    whole = f.when(query == "", path).otherwise(f.concat(path, f.lit("?"), query))
    text = f.lower(f.substring(whole, 1, PATH_LIMIT))
    text = f.replace(text, f.lit("%25"), f.lit("%"))  # what was escaped twice
    for escape, plain in _ESCAPES:
        text = f.replace(text, f.lit(escape), f.lit(plain))
    return text


def family(text: Column) -> Column:
    """The index in FAMILIES of the first family that ``text`` (see ``target``) belongs to, or null."""
    found = f.lit(None).cast("int")
    for index in reversed(range(len(FAMILIES))):
        found = f.when(text.rlike(FAMILIES[index].pattern), index).otherwise(found)
    return found


def label(index: Column) -> Column:
    """The words for a family's index."""
    return f.element_at(f.array(*(f.lit(one.label) for one in FAMILIES)), index + 1)


def is_certain(index: Column) -> Column:
    return f.element_at(f.array(*(f.lit(one.certain) for one in FAMILIES)), index + 1)


def is_harmless(path: Column) -> Column:
    """Whether browsers, crawlers and monitors ask for this by themselves, whether it exists or not."""
    return f.lower(path).rlike(_HARMLESS)


def is_asset(path: Column) -> Column:
    """Whether this is loaded as a part of a page or a map: many of them missing is a broken page, not a search."""
    return f.lower(path).rlike(_ASSET)
