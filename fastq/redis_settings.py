"""Where the server is, and how to get in: `RedisSettings`, usually made from a URL."""

from __future__ import annotations

import os
import re
import ssl
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

from fastq.errors import ConfigError

DEFAULT_URL = "redis://localhost:6379/0"
_SCHEMES = ("redis", "rediss", "unix")
_HOW = "Use redis://[user:password@]host:port/db, rediss:// for TLS, or unix:///path?db=0."
_MALFORMED = (
    "The Redis URL cannot be read: its host or port is malformed, or its password has a character "
    f"that must be encoded (/ as %2F, ? as %3F, # as %23, [ as %5B). {_HOW}"
)
_VERIFY = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


@dataclass(frozen=True, kw_only=True)
class RedisSettings:
    """A server's address and the credentials for it.

    `tls_ca`, `tls_cert` and `tls_key` are paths of PEM files; without `tls_ca` the system's
    certificates are trusted. `unix_socket` is a path and takes the place of host and port.
    """

    host: str = "localhost"
    port: int = 6379
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    unix_socket: str | None = None
    tls: bool = False
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_verify: str = "required"
    tls_check_hostname: bool = True

    @classmethod
    def resolve(cls, value: str | RedisSettings | None) -> RedisSettings:
        """Settings from what a user may give: a URL, settings, or None for the environment's."""
        if isinstance(value, RedisSettings):
            return value
        if value is None:
            value = os.environ.get("FASTQ_REDIS_URL") or DEFAULT_URL
        if not isinstance(value, str):
            raise ConfigError(f"redis must be a URL or RedisSettings, not {type(value).__name__}.")
        return cls.from_url(value)

    @classmethod
    def from_url(cls, url: str) -> RedisSettings:
        """Reads a URL; `ConfigError` says what is wrong with it, without its password."""
        try:
            return cls(**_options(url, _scheme(url)))
        except ConfigError:
            if _is_torn(url):
                raise ConfigError(_MALFORMED) from None
            raise

    @property
    def address(self) -> str:
        """The server as a person would name it, without credentials."""
        if self.unix_socket:
            return f"unix://{self.unix_socket}?db={self.db}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'rediss' if self.tls else 'redis'}://{host}:{self.port}/{self.db}"

    @property
    def url(self) -> str:
        """The server's URL with the credentials: for connecting, never for showing."""
        if self.password is None:
            return self.address
        scheme, _, rest = self.address.partition("://")
        return f"{scheme}://{quote(self.username or '')}:{quote(self.password, safe='')}@{rest}"

    def tls_context(self) -> ssl.SSLContext | None:
        """The context for a TLS connection, or None where none is wanted."""
        if not self.tls:
            return None
        try:
            context = ssl.create_default_context(cafile=self.tls_ca)
            if self.tls_cert:
                context.load_cert_chain(self.tls_cert, self.tls_key)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"A TLS file of {self.address} cannot be read: {error}.") from None
        context.check_hostname = self.tls_check_hostname and self.tls_verify == "required"
        context.verify_mode = _VERIFY[self.tls_verify]
        return context


def _scheme(url: str) -> str:
    try:
        scheme = urlsplit(url).scheme
    except ValueError:
        raise ConfigError(_MALFORMED) from None
    if scheme not in _SCHEMES:
        raise ConfigError(f"The Redis URL has the scheme {scheme!r}. {_HOW}")
    return scheme


def _is_torn(url: str) -> bool:
    """True if a / ? or # seems to have torn a password, whose rest is then not to be shown."""
    rest = url.partition("://")[2]
    return "@" in rest and "@" not in re.split("[/?#]", rest)[0]


def _options(url: str, scheme: str) -> dict[str, Any]:
    # redis-py reads the URL, so that one which works there works here.
    from redis.connection import parse_url

    try:
        found: dict[str, Any] = dict(parse_url(url))  # type: ignore[no-untyped-call, unused-ignore]
    except ValueError as error:
        # urllib's texts quote what may be a part of the password; redis-py's name an option.
        invalid = str(error).startswith("Invalid value for")
        text = f"The Redis URL cannot be read: {error} {_HOW}" if invalid else _MALFORMED
        raise ConfigError(text) from None
    found.pop("connection_class", None)
    options: dict[str, Any] = {"tls": scheme == "rediss"}
    for name, value in found.items():
        known = _NAMES.get(name)
        if known is None:
            raise ConfigError(
                f"The Redis URL has the option {name!r}, which is not known. "
                f"Known are db and {', '.join(n for n in _NAMES if n.startswith('ssl_'))}."
            )
        options[known] = value
    _check_db(url, scheme, options)
    _check_tls(options)
    return options


_NAMES = {
    "host": "host",
    "port": "port",
    "db": "db",
    "username": "username",
    "password": "password",
    "path": "unix_socket",
    "ssl_ca_certs": "tls_ca",
    "ssl_certfile": "tls_cert",
    "ssl_keyfile": "tls_key",
    "ssl_cert_reqs": "tls_verify",
    "ssl_check_hostname": "tls_check_hostname",
}


def _check_db(url: str, scheme: str, options: dict[str, Any]) -> None:
    # redis-py passes over a path that is no number, and the jobs would land in database 0.
    path = urlsplit(url).path.strip("/")
    if scheme != "unix" and path and not path.isdecimal():
        raise ConfigError(f"The Redis URL names the database {path!r}, which is no number. {_HOW}")
    if scheme == "unix" and not options.get("unix_socket"):
        raise ConfigError(f"The Redis URL names no socket. {_HOW}")


def _check_tls(options: dict[str, Any]) -> None:
    if not options["tls"] and any(name.startswith("tls_") for name in options):
        raise ConfigError("The Redis URL has ssl_ options, but its scheme is not rediss://.")
    verify = options.get("tls_verify", "required")
    if verify not in _VERIFY:
        raise ConfigError(f"ssl_cert_reqs is none, optional or required, not {verify!r}.")
    check = options.get("tls_check_hostname")
    if isinstance(check, str):
        options["tls_check_hostname"] = check.lower() in ("true", "1", "yes")
