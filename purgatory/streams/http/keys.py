"""The keys of a server. Its database stores the keys, so all processes sign and verify with the same keys."""

import base64
import hashlib
import json
import secrets
import time
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from purgatory.streams.core.commands import Secrets
from purgatory.streams.core.state import Subscription
from purgatory.streams.engine.streams import Streams

_LIFETIME: Final = 24 * 3600.0
"""Lifetime of a token, in seconds. A worker that holds a wake for longer loses the wake."""
_ALGORITHM: Final = "HS256"


class TokenInvalid(Exception):
    """A token is missing, malformed or expired, or belongs to another subscription."""

    def __init__(self, message: str, code: str = "TOKEN_INVALID") -> None:
        super().__init__(message)
        self.code = code


class Keys:
    """The key that signs webhooks, and the one of the tokens of wakes."""

    def __init__(self, signing: bytes, token: bytes) -> None:
        self._signing = Ed25519PrivateKey.from_private_bytes(signing)
        self._token = token
        public = self._signing.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        key = {"crv": "Ed25519", "kty": "OKP", "x": _text(public)}
        thumbprint = hashlib.sha256(
            json.dumps(key, separators=(",", ":"), sort_keys=True).encode()
        ).digest()  # RFC 7638
        self.id = f"ds_{_text(thumbprint)}"
        self.public = {"keys": [{**key, "kid": self.id, "use": "sig", "alg": "EdDSA"}]}

    @classmethod
    async def load(cls, streams: Streams) -> "Keys":
        """The stored keys, which are created if there are none. Raises `StorageError`."""
        private = Ed25519PrivateKey.generate().private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
        new = {"webhook signing key": private.hex(), "wake token key": secrets.token_hex(32)}
        stored = await streams.run(Secrets(new))
        return cls(*(bytes.fromhex(stored[name]) for name in new))

    def sign(self, body: bytes) -> str:
        """The header `Webhook-Signature` of a body."""
        now = int(time.time())
        signature = self._signing.sign(b"%d.%b" % (now, body))
        return f"t={now},kid={self.id},ed25519={_text(signature)}"

    def token(self, subscription: Subscription) -> str:
        """The token of the wake that is under way."""
        claims = {
            "sub": subscription.id,
            "inc": subscription.incarnation,
            "gen": subscription.generation,
            "exp": time.time() + _LIFETIME,
        }
        return jwt.encode(claims, self._token, _ALGORITHM)

    def check(self, token: str, subscription: str) -> tuple[int, int]:
        """The incarnation and the generation of a token. Raises `TokenInvalid`."""
        try:
            claims: dict[str, Any] = jwt.decode(
                token, self._token, [_ALGORITHM], options={"require": ["exp", "sub", "inc", "gen"]}
            )
        except jwt.ExpiredSignatureError:
            raise TokenInvalid("the token has expired", "TOKEN_EXPIRED") from None
        except jwt.InvalidTokenError:
            raise TokenInvalid("the token is not valid") from None
        if claims["sub"] != subscription:
            raise TokenInvalid("the token belongs to another subscription")
        return claims["inc"], claims["gen"]


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
