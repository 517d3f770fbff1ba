"""Every way to reach a server, and what is said where there is none."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from certificates import Authority
from counted import Tally, count, enqueue, working
from fastq import Client, ConfigError, EnqueueError, ServerUnavailable
from proxy import Proxy
from servers import Server, free_port
from waiting import eventually

pytestmark = pytest.mark.faults

# Each sign that has a meaning somewhere in a URL.
SECRET = "p@ss:w/rd%41?a=b#c&d +é"
USER = "ada@example.org:1"
PATIENCE = 1.5


async def runs(url: str, tally: Tally) -> None:
    """A client and a worker there do their work."""
    async with Client(url) as client, working(url):
        await tally.all_once(await enqueue(client, 20))


async def refusal(url: str, caplog: pytest.LogCaptureFixture) -> str:
    """What client and worker say of a server that they cannot get into; both say the same cause."""
    caplog.clear()
    loop = asyncio.get_running_loop()
    async with Client(url) as client:
        began_s = loop.time()
        with pytest.raises(EnqueueError) as caught:
            await client.enqueue(count)
        assert loop.time() - began_s < 2, "it went on trying what cannot succeed"
    async with working(url):
        await eventually(lambda: "Redis is not to be had" in caplog.text)
    cause = str(caught.value.__cause__)
    assert cause in caplog.text
    return str(caught.value)


async def test_a_unix_socket(valkey: Server, tally: Tally) -> None:
    await runs(f"unix://{valkey.socket_path}?db=3", tally)
    assert valkey.client(3).exists("fastq:queues")


async def test_a_database_by_path_and_by_option(valkey: Server, tally: Tally) -> None:
    await runs(valkey.url(5), tally)
    await runs(valkey.url().removesuffix("/0") + "?db=6", tally)
    assert not valkey.client().exists("fastq:queues")
    assert valkey.client(5).exists("fastq:queues")
    assert valkey.client(6).exists("fastq:queues")


async def test_ipv6(valkey: Server, tally: Tally) -> None:
    try:
        proxy = await contextlib.AsyncExitStack().enter_async_context(
            Proxy(valkey.port, host="::1")
        )
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    try:
        await runs(f"redis://[::1]:{proxy.port}/0", tally)
    finally:
        await proxy.__aexit__()


# Credentials


@pytest.fixture
def user(valkey: Server) -> Iterator[str]:
    control = valkey.client()
    control.acl_setuser(
        USER,
        enabled=True,
        passwords=[f"+{SECRET}"],
        keys=["*"],
        channels=["*"],
        categories=["+@all"],
    )
    yield USER
    control.acl_deluser(USER)


def with_user(server: Server, user: str, secret: str) -> str:
    return f"redis://{quote(user, safe='')}:{quote(secret, safe='')}@127.0.0.1:{server.port}/0"


async def test_a_user_and_a_password_with_every_special_sign(
    valkey: Server, tally: Tally, user: str
) -> None:
    await runs(with_user(valkey, user, SECRET), tally)


async def test_a_password_alone(make_server: Callable[..., Server], tally: Tally) -> None:
    await runs(make_server("valkey-9.1", "--requirepass", SECRET).url(), tally)


async def test_a_wrong_password_is_said_at_once_and_never_shown(
    valkey: Server, tally: Tally, user: str, caplog: pytest.LogCaptureFixture
) -> None:
    url = with_user(valkey, user, "not " + SECRET)
    said = await refusal(url, caplog)
    assert "WRONGPASS" in said
    assert "correct the URL" in said
    for text in (said, caplog.text, repr(Client(url))):
        assert SECRET not in text
        assert quote(SECRET, safe="") not in text


async def test_a_missing_password_is_said_at_once(
    make_server: Callable[..., Server], tally: Tally, caplog: pytest.LogCaptureFixture
) -> None:
    server = make_server("valkey-9.1", "--requirepass", SECRET)
    assert "NOAUTH" in await refusal(f"redis://127.0.0.1:{server.port}", caplog)


async def test_a_database_that_does_not_exist(
    valkey: Server, tally: Tally, caplog: pytest.LogCaptureFixture
) -> None:
    said = await refusal(valkey.url(99), caplog)
    assert f"{valkey.url(99)}: ERR DB index is out of range" in said


# TLS


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@contextlib.asynccontextmanager
async def behind_tls(server: Server, context: ssl.SSLContext, options: str) -> AsyncIterator[str]:
    async with Proxy(server.port, tls=context) as proxy:
        yield f"rediss://localhost:{proxy.port}/0{options}"


async def test_tls_with_a_certificate_of_the_given_authority(
    valkey: Server, tally: Tally, authority: Authority
) -> None:
    trust = f"?ssl_ca_certs={authority.ca_file}"
    async with behind_tls(valkey, authority.server_context(), trust) as url:
        await runs(url, tally)
        await runs(url.replace("localhost", "127.0.0.1"), tally)


@pytest.mark.parametrize(
    ("host", "expired", "cause"),
    [
        ("localhost", True, "certificate has expired"),
        ("redis.example.org", False, "Hostname mismatch"),
    ],
    ids=["expired", "wrong host"],
)
async def test_tls_with_a_bad_certificate(
    valkey: Server,
    tally: Tally,
    authority: Authority,
    caplog: pytest.LogCaptureFixture,
    host: str,
    expired: bool,
    cause: str,
) -> None:
    context = authority.server_context(host, expired=expired)
    async with behind_tls(valkey, context, f"?ssl_ca_certs={authority.ca_file}") as url:
        said = await refusal(url, caplog)
        assert cause in said
        assert url.partition("?")[0] in said
        await runs(url + "&ssl_cert_reqs=none", tally)
    if not expired:
        async with behind_tls(valkey, context, f"?ssl_ca_certs={authority.ca_file}") as url:
            await runs(url + "&ssl_check_hostname=false", tally)


async def test_tls_with_an_authority_that_is_not_known(
    valkey: Server,
    tally: Tally,
    authority: Authority,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    stranger = Authority(tmp_path, "stranger").server_context()
    for options in ("", f"?ssl_ca_certs={authority.ca_file}"):
        async with behind_tls(valkey, stranger, options) as url:
            assert "certificate verify failed" in await refusal(url, caplog)
    async with behind_tls(valkey, stranger, "?ssl_cert_reqs=none") as url:
        await runs(url, tally)


async def test_tls_towards_a_server_without(
    valkey: Server, tally: Tally, caplog: pytest.LogCaptureFixture
) -> None:
    async with Client(f"rediss://127.0.0.1:{valkey.port}/0", connect_timeout=1) as client:
        with pytest.raises(EnqueueError, match="rediss://127.0.0.1"):
            await client.enqueue(count)


async def test_a_file_of_certificates_that_is_not_there(tmp_path: Path) -> None:
    url = f"rediss://localhost:{free_port()}/0?ssl_ca_certs={tmp_path}/none.pem"
    async with Client(url, connect_timeout=1) as client:
        with pytest.raises(ConfigError, match="TLS file"):
            await client.enqueue(count)
        with pytest.raises(ConfigError, match="TLS file"):
            await client.job("1-1").result(timeout=2)


# Nobody there


@pytest.fixture
def black_hole() -> Iterator[int]:
    """A port that takes connections, and never says a word."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(128)
        yield listening.getsockname()[1]


@pytest.mark.parametrize("scheme", ["redis", "rediss"])
async def test_the_connect_timeout_holds_where_nobody_answers(black_hole: int, scheme: str) -> None:
    loop = asyncio.get_running_loop()
    async with Client(f"{scheme}://127.0.0.1:{black_hole}/0", connect_timeout=1) as client:
        began_s = loop.time()
        with pytest.raises(EnqueueError, match=f"127.0.0.1:{black_hole}/0: no "):
            await client.enqueue(count)
        assert 0.5 < loop.time() - began_s < PATIENCE
        began_s = loop.time()
        with pytest.raises(ServerUnavailable):
            await client.job("1-1").status()
        assert loop.time() - began_s < PATIENCE
        with pytest.raises(TimeoutError):
            await client.job("1-1").result(timeout=0.2)


async def test_the_connect_timeout_holds_where_nobody_listens() -> None:
    loop = asyncio.get_running_loop()
    url = f"redis://127.0.0.1:{free_port()}/0"
    async with Client(url, connect_timeout=1) as client:
        began_s = loop.time()
        errors = await asyncio.gather(
            *(client.enqueue(count) for _ in range(100)), return_exceptions=True
        )
        assert loop.time() - began_s < PATIENCE
    assert {type(error) for error in errors} == {EnqueueError}
    assert url in str(errors[0])


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("localhost:6379", "scheme 'localhost'"),
        ("http://localhost", "scheme 'http'"),
        ("redis://localhost:70000", "Redis URL cannot be read"),
        ("redis://localhost:port", "Redis URL cannot be read"),
        ("redis://[::1", "Redis URL cannot be read"),
        ("redis://localhost/zero", "database 'zero'"),
        ("redis://localhost?db=zero", "Redis URL"),
        ("redis://localhost?max_connections=5", "option 'max_connections'"),
        ("redis://localhost?ssl_cert_reqs=none", "not rediss://"),
        ("rediss://localhost?ssl_cert_reqs=perhaps", "none, optional or required"),
        ("unix://?db=1", "names no socket"),
        ("", "scheme ''"),
    ],
)
def test_a_wrong_url_is_told_before_anything_happens(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Client(url)
    secret = url.replace("://", f"://ada:{quote('s3cret')}@")
    with pytest.raises(ConfigError) as caught:
        Client(secret)
    assert "s3cret" not in str(caught.value)
