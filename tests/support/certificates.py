"""A certificate authority for tests, and the certificates that it signs."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)


class Authority:
    """Its own certificate is in `file`, which other users may read: under root, servers run as another user."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        basic = x509.BasicConstraints(ca=True, path_length=None)
        self._certificate = self._sign(self._name, self._key, basic)
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def certify(self, address: str = "127.0.0.1") -> tuple[Path, Path]:
        """The files of a certificate for a server at `address`, or of that name, and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, address)])
        is_name = address[-1].isalpha()
        alternative = x509.DNSName(address) if is_name else x509.IPAddress(ip_address(address))
        certificate, private = self._folder / f"{address}.pem", self._folder / f"{address}.key"
        certificate.write_bytes(
            self._sign(name, key, x509.SubjectAlternativeName([alternative])).public_bytes(serialization.Encoding.PEM)
        )
        form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        private.write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))
        return certificate, private

    def context(self, address: str = "127.0.0.1") -> ssl.SSLContext:
        """What a server at `address` needs to speak TLS."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*self.certify(address))
        return context

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        unsigned = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + DAY)
            .add_extension(extension, critical=False)
        )
        return unsigned.sign(self._key, hashes.SHA256())
