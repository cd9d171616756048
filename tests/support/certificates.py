"""Certificate authorities and certificates made on the spot (EC keys: a few milliseconds each)."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID, NameOID

DAY = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, as files of one directory; ``pem`` is both."""

    cert: bytes
    key: bytes

    def write(self, directory: Path, stem: str) -> tuple[str, str]:
        """Put them at ``STEM.pem`` and ``STEM.key``, each by a rename; return the two paths."""
        paths = (directory / f"{stem}.pem", directory / f"{stem}.key")
        for path, content in zip(paths, (self.cert, self.key), strict=True):
            write(path, content)
        return str(paths[0]), str(paths[1])


def write(path: Path, content: bytes) -> str:
    """Put ``content`` at ``path`` by a rename."""
    new = path.with_name(path.name + ".new")
    new.write_bytes(content)
    new.chmod(0o600)
    new.rename(path)
    return str(path)


class Authority:
    """A CA that signs whatever it is asked to. Names: DNS names, IP addresses, and URIs by their ``://``."""

    def __init__(self, name: str = "test CA") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.datetime.now(datetime.UTC)
        self._certificate = (
            x509.CertificateBuilder()
            .subject_name(self._name)
            .issuer_name(self._name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + 365 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )

    @property
    def pem(self) -> bytes:
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def issue(
        self, *names: str, days: float = 60, password: bytes | None = None, alternative: bytes | None = None
    ) -> Pair:
        """Return a certificate for ``names`` that ends in ``days`` (or ended, where that is negative).

        ``alternative``: what its subjectAltName holds instead, as DER.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        end = datetime.datetime.now(datetime.UTC) + days * DAY
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")]))
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(end - 400 * DAY)
            .not_valid_after(end)
            .add_extension(authority, critical=False)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
        )
        if names:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_name(name) for name in names]), critical=False
            )
        if alternative is not None:
            builder = builder.add_extension(
                x509.UnrecognizedExtension(ExtensionOID.SUBJECT_ALTERNATIVE_NAME, alternative), critical=False
            )
        encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password is not None:
            encryption = serialization.BestAvailableEncryption(password)
        return Pair(
            builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM),
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption),
        )

    def client(self, certificate: tuple[str, str] | None = None) -> ssl.SSLContext:
        """Return a client's context that trusts this CA, and shows a certificate (its two files)."""
        context = ssl.create_default_context(cadata=self.pem.decode())
        if certificate is not None:
            context.load_cert_chain(*certificate)
        return context

    def server(self, files: tuple[str, str], *, asks: bool = False) -> ssl.SSLContext:
        """Return a server's context that shows ``files``; ``asks``: callers must show a certificate of this CA."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*files)
        if asks:
            context.load_verify_locations(cadata=self.pem.decode())
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def _name(text: str) -> x509.GeneralName:
    if "://" in text:
        return x509.UniformResourceIdentifier(text)
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)
