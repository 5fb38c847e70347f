"""Access log lines as columns: every line either becomes a request, or is rejected with a reason that a person can read.

Common and combined format as nginx and Apache write them, all in Spark's own expressions: no Python runs per line, and
one regular expression is matched per line, not one per field. What the requests mean is not decided here.

What is used more than once is a column of its own: in one expression Spark computes it anew for each branch that names it.

Source of the two formats: Apache mod_log_config ("Common Log Format"), nginx ngx_http_log_module ("combined").
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as f

COLUMNS = (
    "address", "identd", "user", "time", "method", "path", "query", "protocol", "status", "bytes", "referer", "agent",
)  # fmt: skip
"""What a parsed line consists of; absent values ("-") are null, the parts of a garbled request line are empty."""

_SEPARATOR = "\u001f"  # between the fields of a matched line; taken out of the text before matching

# Every loop is possessive or in an atomic group, so that Java runs it without recursion: a line of a megabyte cannot overflow the
# stack. A loop over one set of characters is atomic, (?>[^x]*) in place of [^x]*+: Java has a faster one for it.
_IP = r"(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9a-fA-F]*:[0-9a-fA-F:.]*)"
_PORT_BEFORE = r'(?<=[^\s"\[,]:\d{2,5} )'
_VHOST = rf'(?:(?>[^\s"\[,]+) (?:(?={_IP} )|(?=[^\s"\-]\S* \S+ \S+ \[){_PORT_BEFORE}))?+'
_ADDRESS = r'(?!- )([^\s",\[\]]{1,255}+)(?:, ?[^\s",\[\]]+)*+'
_WHO = rf"\A{_VHOST}{_ADDRESS} (\S+) ([^\[]{{1,512}}) \["
_TIME = r'([^\]"]{1,64})\] '
_ESCAPED = r'(?>[^"\\]*)(?:\\.(?>[^"\\]*))*+'  # Apache writes \" inside a quoted field, nginx \x22
_RESULT = r" (\d{3}) (\d{1,18}|-)"

_STRICT = (
    rf'(?s){_WHO}{_TIME}"({_ESCAPED})"{_RESULT}'
    rf'(?: "({_ESCAPED})" "({_ESCAPED})"(?:\s.*+)?|(?:\s(?!").*+)?)\z'
)  # fmt: skip
_LENIENT = rf'(?s){_WHO}{_TIME}"(?>(.*?)"{_RESULT}(?=\s|\z))(?: "(?>(.*?)" ")(.*)"[^"]*|(?:\s(?!").*+)?)\z'
"""For servers that escaped nothing: a bare quote or a closing backslash inside a field.

Each field ends where it first may, for good (atomic groups): tried again from every quote, a line of a megabyte took hours.
"""

_SPACE_WITHIN = r" (?!HTTP/\S{1,16} ?\z)"  # a target may have spaces: one ends it where a protocol alone follows
_PATH, _QUERY = rf"(?>[^? ]*)(?:{_SPACE_WITHIN}(?>[^? ]*))*+", rf"(?>[^ ]*)(?:{_SPACE_WITHIN}(?>[^ ]*))*+"
_REQUEST_LINE = (
    r"(?s)\A([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) (?=\S)"
    rf"({_PATH})(?:\?({_QUERY}))?+(?: (HTTP/\S{{1,16}}) ?)?\z"
)  # fmt: skip
_FIELDS = _SEPARATOR.join(f"${group}" for group in range(1, 10))
_CLF_TIMES = ("d/MMM/yyyy:HH:mm:ss Z", "d/MMM/yyyy:HH:mm:ss", "d/MMM/yyyy:HH:mm:ss XXX")
_PORT = r"\A(\d{1,3}(?:\.\d{1,3}){3}):\d{1,5}\z"  # some proxies log it: every connection would be another client

BLANK = "blank line"
NO_ADDRESS = "no address: the line does not begin with a client, an identity and a user"
NO_TIME = "no time: there is no [day/month/year:time zone] after the user"
BAD_TIME = "bad time: what stands between the brackets is not a date and a time"
NO_REQUEST = "no request: no quoted request follows the time"
CUT_REQUEST = "truncated: the line ends inside the request, or right after it"
BAD_STATUS = "bad status: no three-digit status follows the request"
BAD_SIZE = "bad size: no number of bytes follows the status"
CUT_TAIL = "truncated: the line ends inside the referer or the user agent"
FUTURE = "time in the future: more than a day after the queue took the line"
REJECTED = "rejected"
REASONS = (BLANK, NO_ADDRESS, NO_TIME, BAD_TIME, NO_REQUEST, CUT_REQUEST, BAD_STATUS, BAD_SIZE, CUT_TAIL, FUTURE)
_STEPS = ("_text", "_strict", "_parts", "_instant", "_asked")
_AHEAD = "INTERVAL 1 DAY"  # a server whose time zone is set wrong is at most 14 hours ahead


def parse(lines: DataFrame, *, value: str = "value", why: bool = True) -> DataFrame:
    """``lines`` with the fields of each line beside it: COLUMNS, ``raw`` (the line's bytes) and ``reason``.

    ``value`` names the binary column that holds the line, and ``timestamp`` says when the queue took it. ``reason`` is null
    exactly where the line was parsed, so that every row is archived or rejected and never both. Bytes that are not UTF-8
    become U+FFFD in the fields, and stay as they were in ``raw``. Without ``why`` all that is wrong has one reason, REJECTED: to
    find that of a line takes several looks at it.
    """
    text = lines.withColumn("_text", _text(f.col(value)))
    strict = text.withColumn("_strict", _matched(_STRICT))
    matched = strict.withColumn("_parts", f.when(f.size("_strict") == 9, f.col("_strict")).otherwise(_matched(_LENIENT)))
    dated = matched.withColumn("_instant", _instant(_part(3))).withColumn("_asked", _asked(_part(4)))
    fields = dated.withColumn("time", _in_range(f.col("_instant")))
    whole = (f.size("_parts") == 9) & f.col("time").isNotNull()
    ahead = f.col("time") > f.col("timestamp") + f.expr(_AHEAD)
    reason = f.when(whole & ahead, FUTURE if why else REJECTED).when(~whole, _reason(f.col("_text")) if why else f.lit(REJECTED))
    return fields.select("*", f.col(value).alias("raw"), *_fields(), reason.alias("reason")).drop(*_STEPS)


def observed(parsed: DataFrame, *columns: str) -> tuple[Observation, DataFrame]:
    """Those columns of the requests in ``parsed``, and, once these have been gone through, the number of lines that are requests
    (``good``) and of those that are not (``bad``)."""
    found = Observation()
    good = f.count(f.when(f.col("reason").isNull(), 1))
    seen = parsed.select(*columns, "reason").observe(found, good.alias("good"), f.count("reason").alias("bad"))
    return found, requests(seen)


def requests(parsed: DataFrame) -> DataFrame:
    """The lines that are requests."""
    return parsed.where(f.col("reason").isNull())


def rejects(parsed: DataFrame) -> DataFrame:
    """The lines that are not."""
    return parsed.where(f.col("reason").isNotNull())


def _text(value: Column) -> Column:
    """The line as valid text, without the separator, the line's end, and what editors put before it: a mark, spaces.

    Only where there is something to replace or to trim is Spark asked for it, because it takes every text to pieces for that.
    """
    text = value.cast("string")
    valid = f.make_valid_utf8(text)
    separator = f.lit(_SEPARATOR)
    plain = f.when(f.contains(text, separator), f.replace(valid, separator, f.lit("\ufffd"))).otherwise(valid)
    ends = f.endswith(text, f.lit("\n")) | f.endswith(text, f.lit("\r"))
    return f.ltrim(f.when(ends, f.rtrim(plain, f.lit("\r\n"))).otherwise(plain), f.lit("\ufeff \t"))


def _matched(pattern: str) -> Column:
    """The nine fields of the line, or an array of one where it does not match."""
    return f.split(f.regexp_replace("_text", pattern, _FIELDS), _SEPARATOR, -1)


def _asked(request: Column) -> Column:
    """Method, path, query and protocol; an array of one where the request line is garbled."""
    return f.split(f.regexp_replace(request, _REQUEST_LINE, _SEPARATOR.join(("$1", "$2", "$3", "$4"))), _SEPARATOR, -1)


def _part(index: int) -> Column:
    return f.get(f.col("_parts"), f.lit(index))


def _word(index: int) -> Column:
    """Of the request line; empty where it is garbled."""
    return f.when(f.size("_asked") == 4, f.get(f.col("_asked"), f.lit(index))).otherwise("")


def _present(part: Column) -> Column:
    """Null for what the server wrote as absent."""
    return f.when(~part.isin("-", "", '""'), part)


def _instant(part: Column) -> Column:
    """The time as an instant; null where it is none. Fractions of a second, and ISO 8601, are taken too."""
    whole = f.regexp_replace(f.regexp_replace(part, r"(:\d\d)\.\d+", "$1"), r"(:\d\d:\d\d):60", "$1:59")  # a leap second
    iso = f.when(part.rlike(r"\A\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d"), f.try_to_timestamp(part))
    usual = f.try_to_timestamp(part, f.lit(_CLF_TIMES[0]))  # which needs nothing replaced
    return f.coalesce(usual, *(f.try_to_timestamp(whole, f.lit(form)) for form in _CLF_TIMES), iso)


def _in_range(instant: Column) -> Column:
    """Null for years that are none of a server's."""
    return f.when(f.year(instant).between(1970, 2999), instant)


def _fields() -> list[Column]:
    return [
        f.regexp_replace(_part(0), _PORT, "$1").alias("address"),
        _present(_part(1)).alias("identd"),
        _present(_part(2)).alias("user"),
        _word(0).alias("method"),
        _word(1).alias("path"),
        _word(2).alias("query"),
        _word(3).alias("protocol"),
        _part(5).try_cast("int").alias("status"),
        _part(6).try_cast("bigint").alias("bytes"),
        _present(_part(7)).alias("referer"),
        _present(_part(8)).alias("agent"),
    ]


def _reason(text: Column) -> Column:
    """The first part of the line that is wrong."""
    who, time = rf"(?s){_WHO}", rf"(?s){_WHO}{_TIME}"
    request = rf'{time}"(?:{_ESCAPED}"|.*" )'
    return (
        f.when(text.rlike(r"\A\s*\z"), BLANK)
        .when(~text.rlike(who), f.when(text.rlike(rf"(?s)\A{_VHOST}{_ADDRESS} \S+ [^\[]"), NO_TIME).otherwise(NO_ADDRESS))
        .when(~text.rlike(rf"(?s){_WHO}[^\]\"]{{1,64}}\]"), NO_TIME)
        .when(_in_range(_instant(f.regexp_extract(text, rf"(?s){_WHO}([^\]\"]{{1,64}})\]", 4))).isNull(), BAD_TIME)
        .when(~text.rlike(rf'{time}"'), NO_REQUEST)
        .when(~text.rlike(request) | text.rlike(rf'{time}"{_ESCAPED}"\s*\z'), CUT_REQUEST)
        .when(~text.rlike(rf'{time}".*" \d{{3}}(?:\s|\z)'), BAD_STATUS)
        .when(~text.rlike(rf'{time}".*"{_RESULT}(?:\s|\z)'), BAD_SIZE)
        .otherwise(CUT_TAIL)
    )
