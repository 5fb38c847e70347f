"""How a request says who sent it, where a broker asks for that: an access key, and a signature by its secret. No I/O here.

Source: AclUtils of RocketMQ 5.3.3.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping

ACCESS_KEY, SIGNATURE = "AccessKey", "Signature"


def signed(fields: Mapping[str, str], body: bytes, access_key: str, secret: str) -> dict[str, str]:
    """``fields`` with the access key and the signature: of all values in the order of their names, and of ``body``."""
    named = {**fields, ACCESS_KEY: access_key}
    named.pop(SIGNATURE, None)
    content = "".join(value for _, value in sorted(named.items())).encode() + body
    digest = hmac.new(secret.encode(), content, hashlib.sha1).digest()
    return {**named, SIGNATURE: base64.b64encode(digest).decode()}
