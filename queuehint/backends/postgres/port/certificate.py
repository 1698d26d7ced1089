"""The certificate of a leader's port: one made for this lead, or that of the operator."""

from __future__ import annotations

import datetime as dt
import hashlib
import secrets
import ssl
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import attrs

from queuehint.errors import MissingExtraError

if TYPE_CHECKING:
    from queuehint.backends.postgres.address import PortOptions

NAME: Final = "queuehint"
_LASTS: Final = dt.timedelta(days=3650)
"""Guests look at the fingerprint alone; a lead does not last so long."""


@attrs.frozen(kw_only=True)
class Certificate:
    """
    What a port is known by.

    Args:
        context: of a server, with the key.
        fingerprint: SHA-256 of the certificate in DER, in hexadecimal digits.
    """

    context: ssl.SSLContext = attrs.field(repr=False)
    fingerprint: str


def check_can_make(options: PortOptions) -> None:
    """
    Check that there is a certificate, or import what makes one, which would take a while when the lead is taken.

    Raises:
        MissingExtraError: the extra ``crypto`` is not installed.
    """
    if options.certificate is None:
        try:
            import cryptography.x509  # noqa: F401
        except ImportError:
            raise MissingExtraError("crypto", "a leader's port without certificate= and key=") from None


def certificate_for(options: PortOptions) -> Certificate:
    """
    Return the operator's certificate, or a new one.

    Raises:
        OSError: the files cannot be read, or do not hold what they should; the message names them.
        MissingExtraError: as of `check_can_make`.
    """
    if options.certificate is None or options.key is None:
        check_can_make(options)
        return _made()
    try:
        with Path(options.certificate).open("rb") as file:
            text = file.read().decode("ascii", "replace")
        Path(options.key).open("rb").close()
    except OSError as error:
        raise OSError(f"certificate and key cannot be read: {error}") from error
    try:
        begin = text.index(ssl.PEM_HEADER)
        end = text.index(ssl.PEM_FOOTER, begin) + len(ssl.PEM_FOOTER)
        return _loaded(ssl.PEM_cert_to_DER_cert(text[begin:end]), options.certificate, options.key)
    except (ValueError, ssl.SSLError) as error:
        raise OSError(
            f"certificate={options.certificate} and key={options.key} must be files of PEM, a certificate first and "
            f"its key without a password: {error}"
        ) from error


def _loaded(der: bytes, certificate: str, key: str, password: bytes | None = None) -> Certificate:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # nothing is resumed: each connection is proved
    context.load_cert_chain(certificate, key, (lambda: password) if password else _refuse_password)
    return Certificate(context=context, fingerprint=hashlib.sha256(der).hexdigest())


def _refuse_password() -> NoReturn:
    raise ValueError("the key has a password")  # OpenSSL would ask for it at the terminal


def _made() -> Certificate:
    """Return a certificate that is signed by its own key, which is in memory alone."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    now = dt.datetime.now(dt.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _LASTS)
        .not_valid_after(now + _LASTS)
        .sign(key, hashes.SHA256())
    )
    # `ssl` reads keys from files only: this one is encrypted by a password that nobody else has, and removed at once.
    password = secrets.token_hex(32).encode()
    encoding = serialization.Encoding
    text = key.private_bytes(
        encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(password)
    )
    with tempfile.TemporaryDirectory(prefix="queuehint-") as folder:
        file = Path(folder) / "key.pem"
        file.write_bytes(signed.public_bytes(encoding.PEM) + text)
        return _loaded(signed.public_bytes(encoding.DER), str(file), str(file), password)
