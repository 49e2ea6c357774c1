"""A certificate for localhost, and a service account that only the fake Google Cloud knows."""

import datetime
import json
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

_PEM = serialization.Encoding.PEM


def write_certificate(folder: Path, names: Sequence[str] = ("localhost",)) -> tuple[Path, Path]:
    """Writes a self-signed certificate for hosts, this one by default, and its key; returns both paths."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host) for host in names]), critical=False)
        .sign(key, hashes.SHA256())
    )
    certificate_file, key_file = folder / "localhost.crt", folder / "localhost.key"
    certificate_file.write_bytes(certificate.public_bytes(_PEM))
    key_file.write_bytes(_private(key))
    return certificate_file, key_file


def write_service_account(folder: Path, project: str, token_uri: str) -> Path:
    """Writes the key file of a service account whose tokens come from ``token_uri``."""
    # A short one: each client that is made proves anew that the key is one, and no token of these tests is worth more.
    key = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    path = folder / "service_account.json"
    path.write_text(
        json.dumps(
            {
                "type": "service_account",
                "project_id": project,
                "private_key_id": "1",
                "private_key": _private(key).decode(),
                "client_email": f"tester@{project}.iam.gserviceaccount.com",
                "client_id": "1",
                "token_uri": token_uri,
            }
        )
    )
    return path


def _private(key: rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
