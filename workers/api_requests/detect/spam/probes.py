"""What scanners ask for: a table of well-known paths by what they are after. Data and columns only; `spam` judges.

A *certain* probe is one that no visitor, crawler or client of an ordinary site sends: a secret file, the entry of a known
exploit. A *possible* probe is a page that some sites do have (a WordPress login, phpMyAdmin, webmail): it counts only
where it does not exist, and only when one address looks for several of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as f

from workers.api_requests.detect.spam.alternatives import one_of, words

PATH_LIMIT = 512  # characters of a path or a query that are looked at; more gain nothing and cost time
# To look back over all of them takes {0,1024}, because Java counts an emoji as two.


@dataclass(frozen=True, slots=True)
class Family:
    """One kind of thing that is looked for: ``patterns``, of which one is in the lower-case, unescaped ``path?query``."""

    label: str
    certain: bool
    patterns: tuple[str, ...]


_CREDENTIALS = r"""
    /\.env\d*(?:[._~-][a-z0-9._~-]*)?/?{end}
    /\.git/(?:config|index|logs/)  /\.git-credentials  /\.svn/(?:entries|wc\.db)
    /\.aws/  /\.ssh/  /\.s3cfg  /\.htpasswd  /\.bash_history  /\.netrc  /\.docker/config\.json  /id_(?:rsa|dsa|ecdsa|ed25519){end}
    /wp-config[^/?]*\.(?:php|bak|old|save|swp|txt|zip|orig)
    /\.npmrc{end}  /\.ftpconfig{end}  /\.idea/workspace\.xml  /docker-compose\.ya?ml{end}  /app/etc/local\.xml{end}
    /\.vscode/sftp\.json  /sftp-config\.json  /credentials(?:/config)?\.json  /config/parameters\.ya?ml
    /(?:aws|awsconfig|smtp|s3cmd)\.(?:json|ini|ya?ml){end}  /(?:dump|backup|database|db)\.sql(?:\.gz|\.zip)?{end}
    /\.kube/  /\.config/gcloud/  /\.terraform/  /terraform\.tfstate(?:\.backup)?{end}
"""
_EXPLOITS = r"""
    \-stdin\.php(?<=eval-stdin\.php)(?<=/[^/]{0,1024})  /vendor/phpunit/  /getphpinfo\.php  /wp-file-manager/.*connector
    /_ignition/  \$\{jndi:  kefunction(?<=invokefunction)(?<=\?.{0,1024})  _func_array(?<=call_user_func_array)(?<=\?.{0,1024})
    _url_include(?<=allow_url_include)(?<=\?.{0,1024})  _prepend_file(?<=auto_prepend_file)(?<=\?.{0,1024})
    /telerik\.web\.ui\.webresource\.axd  /autodiscover\.json\?(?:[^=&]*@|.*powershell)  /actuator/(?:gateway|jolokia)
    /ecp/current/exporttool/  /manager/text/list  /boaform/  /gponform/  /hnap1  /shell\?(?:cd|wget|curl)
    /setup\.cgi\?.*(?:cmd|todo)=  /cgi-bin/.*(?:\.\./|/bin/(?:ba)?sh)  /cgi-bin/(?:luci/;|phf\?)  /nice\sports
    \.module(?<=class\.module)\.classloader  =(?<=element_parents=).*#value  =php://(?:input|filter)
    \.lang(?<=java\.lang)\.runtime  /\.\.;/  /vpns?/\.\./
    /default\.ida\?  /(?:scripts|msadc)/root\.exe  /winnt/system32/  /system32/cmd\.exe
    =https?://169\.254\.169\.254  \A/(?:latest/meta-data/|computemetadata/v1)  [\s+]config-create[\s+]  /device\.rsp\?opt=
    /goform/  /cgi-bin/nas_sharing\.cgi\?  /setupwizard\.aspx/  /mgmt/tm/util/bash  /developmentserver/metadatauploader
"""
_WEB_SHELLS = r"""
    /wp-content/uploads/.*\.php{end}  /wp-content/themes/twenty[a-z-]+/.*\.php{end}  /wp-includes/(?!js/tinymce/).*\.php{end}
    /wp-admin/(?:css|js|images|includes|maint)/.*\.php{end}  /\.well-known/.*\.php{end}  /alfacgiapi/  /alfa_data/
    /(?:alfa|wso|c99|r57|b374k|indoxploit|xleet|webshell|shell)(?:[-_]?(?:new|rex|\d+))?\.php{end}
"""
_TRAVERSAL = r"""
    /(?:passwd|shadow)(?<=etc/(?:passwd|shadow)){up}  /system(?<=windows/system){up}  \.ini(?<=(?:win|boot)\.ini){up}
    /self(?<=proc/self){up}  \-config(?<=wp-config){up}  \.env(?![a-z]){up}
    \A/+(?:@fs/+)?etc/(?:passwd|shadow)(?![a-z0-9._-])  =(?:file:)?/+etc/(?:passwd|shadow)(?![a-z0-9._-])  /proc/self/environ
    :(?<=c:)/+(?:windows|winnt)/(?:system32|win\.ini|system\.ini)
"""
_DEBUG_CONSOLES = r"""
    /_profiler/  /debug/default/view  /actuator/(?:env|heapdump|trace|threaddump)  /telescope/requests
    _session(?<=xdebug_session)_start
"""
_INJECTIONS = r"""
    [\s+](?<=union.)[\s+]*(?:all[\s+]+)?select[\s+(]  [\s+](?<=select.).*information_schema  \((?<=(?:sleep|benchmark)\()\d
    [\s+](?<=waitfor.)[\s+]*delay[\s+]+'  '[\s+]*or[\s+]*'?\d+'?[\s+]*=[\s+]*'?\d
    '[\s+]*and[\s+]*'?\d+'?[\s+]*=[\s+]*'?\d{no_filter}
    [\s+](?<=\bor.)[\s+]*\d+[\s+]*=[\s+]*\d  [\s+](?<=\band.)[\s+]*\d+[\s+]*=[\s+]*\d{no_filter}
    <script[^>]*>[^<]*(?:alert|document\.cookie)
    =(?<=\bon(?:error|load)=).*alert\(  [;|`][\s+]*(?:wget|curl)[\s+]+http  [;|][\s+]*cat[\s+]+/
    \((?<=(?:base64_decode|passthru|shell_exec|phpinfo)\()  <\?php[\s+]*(?:system|exec|eval|die)\(
    [=;`|][\s+]*(?:system|exec|eval|die)\(
"""
_WORDPRESS = r"""
    /wp-login\.php  /wp-admin  /xmlrpc\.php  /wp-cron\.php  /wlwmanifest\.xml  /wp-(?:includes|content)/.*\.php
    /wp-content/plugins/[^/]+/readme\.txt
"""
_DATABASES = r"""
    y-?admin(?<=php-?my-?admin)(?<=/[^/?]{0,1024})  /_?pma\d*(?:/|\z)  /(?:my|sql|db|mysql)-?(?:admin|manager|web)
    /(?:websql|webdb|adminer|phppgadmin)  /index\.php\?lang=en\z
"""
_MAIL = r"/owa(?:/|\z)  /ecp/  /autodiscover  /ews/  /mapi/  /roundcube  /zimbra"
_VPN = r"""
    /remote/(?:login|fgt_lang|logincheck)  /dana-na/  /\+cscoe\+/  /global-protect/  /sslvpn  /vpn/index  /logon/logonpoint
"""
_DEVICES = r"""
    /cgi-bin/(?:authlogin|login|viewer|webproc|mainfunction|kerbynet|nobody|test-cgi|printenv|php|luci|supervisor|cgi_main|weblogin)
    /webui/?\z  /sdk\z  /evox/about  /setup\.cgi  /portal/redlion  /level/15/  /showlogin\.cc  /webinterface/?\z
"""
_CONSOLES = r"""
    /solr/  /manager/(?:html|text)  /jmx-console  /web-console/  /zabbix  /geoserver/web  /druid/  /nacos/  /jenkins  /hudson
    /actuator  /jolokia  /struts2  /api/session/properties  /sugar_version\.json  /_cat/indices  /v2/_catalog  /containers/json
    /console/login  /api/jsonws/  /elmah\.axd  /trace\.axd  /(?:php)?info\.php  /server-status
"""
_SETTINGS = r"""
    /\.git/?(?:head)?\z  /\.ds_store  /\.svn/?\z  /\.hg/  /web\.config  /\.htaccess
    /(?:ws|user|app|deployment)[-_]?config\.json  /config\.(?:php|yml|yaml|ini)  /web-inf/web\.xml
"""
_EDITORS = r"""
    /(?:f?ckeditor|kcfinder|ckfinder|elfinder|kindeditor|ueditor|tiny_?mce)/(?:[^?]*/)?[^/?]+\.(?:html?|php|aspx?|ashx|jsp|cfm)
"""
_BACKUPS = r"""
    \A/(?:backups?|bak|www|wwwroot|web|website|site|public_html|htdocs|html|db|database|dump|sql|data|old|home|ftp|code|source|src|1)
    \.(?:zip|rar|7z|tgz|tar|tar\.gz|sql|sql\.gz|sql\.zip|bak)\z
"""
_COPIES = r"\.(?:php|aspx?|jsp)(?:~|\.(?:bak|old|orig|save|swp))\z(?<=/[^/?]{0,1024})"
GUESSES = "folders by guessing"
_GUESSES = r"""
    \A/(?:admin|administrator|adm|backend|backups?|bak|old|new|test|tests|testing|dev|staging|stage|beta|demo|temp|tmp|private|secret|hidden
    |internal|conf|config|configuration|setup|install|db|database|data|sql|dump|logs?|cache|uploads?|upload|cpanel|webmail|panel|controlpanel
    |dashboard|console|shell|cmd|phpinfo|info|root|user|users|member|members|login|signin|manage|manager|management|portal|secure|server
    |cgi-bin|scripts|admin\.(?:php|aspx?|jsp)|login\.(?:php|aspx?|jsp)|includes?|inc|lib|src|old-site|backup\.(?:zip|tar\.gz|sql)|site\.(?:zip|tar\.gz))/?\z
"""

FAMILIES = (  # the first that matches counts
    Family("secret files", True, words(_CREDENTIALS)),
    Family("known exploits", True, words(_EXPLOITS)),
    Family("web shells", True, words(_WEB_SHELLS)),
    Family("file traversal", True, words(_TRAVERSAL, up=r"(?<=\.\.[/;].{0,1024})")),
    Family("debug consoles", True, words(_DEBUG_CONSOLES)),
    Family("injected code", True, words(_INJECTIONS, no_filter=r"(?<![?&](?:where|cql_filter)=[^&]{0,1024})")),
    Family(
        "open DNS resolvers", True, (r"/(?:dns-query|resolve|query)\?(?:.*name=example\.com|.*dns=[a-z0-9_-]*b2v4yw1wbgudy29t)",)
    ),
    Family("WordPress", False, words(_WORDPRESS)),
    Family("database administration", False, words(_DATABASES)),
    Family("mail servers", False, words(_MAIL)),
    Family("VPN gateways", False, words(_VPN)),
    Family("devices", False, words(_DEVICES)),
    Family("server consoles", False, words(_CONSOLES)),
    Family("settings", False, words(_SETTINGS)),
    Family("page editors", False, words(_EDITORS)),
    Family("backups", False, ("".join(_BACKUPS.split()), _COPIES)),
    Family("open DNS resolvers", False, ("/dns-query",)),
    Family(GUESSES, False, ("".join(_GUESSES.split()),)),
)

CERTAIN = frozenset(index for index, one in enumerate(FAMILIES) if one.certain)
"""Indices of those families."""
_PROBE = one_of([pattern for one in FAMILIES for pattern in one.patterns])
_GUESSES_INDEX = next(index for index, one in enumerate(FAMILIES) if one.label == GUESSES)
_HARMLESS = (
    r"\A/?\z|/(?:robots\.txt|favicon[^/]*|apple-touch-icon[^/]*|sitemap[^/]*|ads\.txt|app-ads\.txt|humans\.txt|security\.txt|llms\.txt|"
    r"browserconfig\.xml|manifest\.json|site\.webmanifest|crossdomain\.xml|feed|rss|atom\.xml)/?\z|\A/\.well-known/"
)
_BY_ITSELF = (
    r"autodiscover|/ews/|/mapi/|/xmlrpc\.php|/wp-cron|/\.ds_store|/\.htaccess|"
    r"/server-status|/jenkins|/hudson|/actuator|/dns-query|/cgi-bin/"
)
"""What programs that mean well (mail clients, monitors, webhooks) ask for in vain, with nobody looking on."""
_ASSET = r"\.(?:png|jpe?g|gif|webp|avif|svg|ico|css|js|mjs|map|woff2?|ttf|eot|otf|mp3|mp4|webm|pbf|mvt|ts|m3u8)\z"
_SHOWN_CODE = (
    r"\A(?:/[^/?]+){2,}/(?:blob|raw|tree|blame|edit|commits|browse|src/(?:branch|tag|commit))/[^/?]+/|\.git/(?:plain|tree|blob)/"
)
"""Pages about a file, as GitLab, Gitea, Bitbucket and cgit show them: a file's name there is no probe for it."""
_ODD = (("\\", "/"), ("\n", " "), ("\r", " "), ("\0", " "))


def unescaped(path: Column, query: Column) -> Column:
    """``path?query`` in lower case, with the escapes undone that hide a probe."""
    whole = f.when(query == "", path).otherwise(f.concat(path, f.lit("?"), query))
    text = f.lower(f.substring(whole, 1, PATH_LIMIT))
    return f.when(f.contains(text, f.lit("%")), f.lower(_unescape(_unescape(text)))).otherwise(text)  # some escape twice


def target(text: Column) -> Column:
    """``text`` (see ``unescaped``) with what stands for something else replaced, and no spaces at its end.

    To replace something Spark asks at each place of a text whether it begins there; that most texts have none is seen sooner.
    """
    is_odd, plain = f.endswith(text, f.lit(" ")), text
    for odd, instead in _ODD:
        is_odd, plain = is_odd | f.contains(text, f.lit(odd)), f.replace(plain, f.lit(odd), f.lit(instead))
    return f.when(is_odd, f.rtrim(plain)).otherwise(text)


def _unescape(text: Column) -> Column:
    """Without %xx; as it is where a % stands for itself. A plus stays a plus."""
    whole = f.regexp_replace(text, "%(?![0-9a-fA-F]{2})", "%25")
    return f.try_url_decode(f.replace(whole, f.lit("+"), f.lit("%2b")))


def family(text: Column) -> Column:
    """The index in FAMILIES of the first family that ``text`` (see ``target``) belongs to, or null."""
    found = f.lit(None).cast("int")
    for index in reversed(range(len(FAMILIES))):
        found = f.when(text.rlike(one_of(FAMILIES[index].patterns)), index).otherwise(found)
    return f.when(text.rlike(_PROBE) & ~text.rlike(_SHOWN_CODE), found)  # one look at most lines, which are none of these


def label(index: Column) -> Column:
    """The words for a family's index."""
    return f.element_at(f.array(*(f.lit(one.label) for one in FAMILIES)), index + 1)


def is_certain(index: Column) -> Column:
    return f.element_at(f.array(*(f.lit(one.certain) for one in FAMILIES)), index + 1)


def is_telling(text: Column, index: Column) -> Column:
    """Whether a possible probe says something where it is all that an address ever asked for."""
    return index.isNotNull() & (index != _GUESSES_INDEX) & ~text.rlike(_BY_ITSELF)


def is_harmless(path: Column) -> Column:
    """Whether browsers, crawlers and monitors ask for this by themselves, whether it exists or not."""
    return f.lower(path).rlike(_HARMLESS)


def is_asset(path: Column) -> Column:
    """Whether this is loaded as a part of a page or a map: many of them missing is a broken page, not a search."""
    return f.lower(path).rlike(_ASSET)
