"""Certificates of an authority of the tests' own."""

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)


class Authority:
    """Signs certificates of servers. `ca_file` is what clients have to trust."""

    def __init__(self, folder: Path, name: str = "fastq tests") -> None:
        self._folder = folder / name
        self._folder.mkdir()
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._certificate = self._make_own()
        self.ca_file = self._folder / "ca.pem"
        self.ca_file.write_bytes(_pem(self._certificate))

    def server_context(self, host: str = "localhost", *, expired: bool = False) -> ssl.SSLContext:
        """TLS of a server with a certificate for `host`; localhost includes 127.0.0.1."""
        key = ec.generate_private_key(ec.SECP256R1())
        path = self._folder / f"{host}{expired}.pem"
        secret = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        path.write_bytes(secret + _pem(self._sign(key, host, expired)))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        return context

    def _make_own(self) -> x509.Certificate:
        builder = self._builder(self._name, self._key.public_key(), expired=False)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        # From 3.13 on Python checks strictly, and wants an authority to say what its key is for.
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        return builder.add_extension(usage, True).sign(self._key, hashes.SHA256())

    def _sign(self, key: ec.EllipticCurvePrivateKey, host: str, expired: bool) -> x509.Certificate:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        names: list[x509.GeneralName] = [x509.DNSName(host)]
        if host == "localhost":
            names.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = self._builder(subject, key.public_key(), expired)
        builder = builder.add_extension(x509.SubjectAlternativeName(names), False)
        return builder.add_extension(issuer_key, False).sign(self._key, hashes.SHA256())

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, expired: bool
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 2 * _DAY)
            .not_valid_after(now - _DAY if expired else now + _DAY)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), False)
        )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
