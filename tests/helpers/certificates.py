"""
Certificates for tests, and the authorities that issue them.
"""

from __future__ import annotations

import datetime as dt
import ipaddress

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


class Authority:
    """
    A certificate authority with its files in a folder.
    """

    def __init__(self, folder, name):
        self.folder = folder
        self.name = name
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = self._sign(name, self.key.public_key(), [], -1, 1, authority=True)
        self.path = self._write(f"{name}.pem", self.certificate)

    def issue(self, name, *, hosts=("127.0.0.1", "localhost"), begin=-1, end=1):
        """
        Make a certificate and its key for some hosts, valid for a span of days from today.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(name, key.public_key(), hosts, begin, end, authority=False)
        secret = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        key_path = self.folder / f"{name}-key.pem"
        key_path.write_bytes(secret)
        return self._write(f"{name}.pem", certificate), str(key_path)

    def _sign(self, name, public, hosts, begin, end, *, authority):
        now = dt.datetime.now(dt.timezone.utc)
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        issuer = subject if authority else self.certificate.subject
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + dt.timedelta(days=begin))
            .not_valid_after(now + dt.timedelta(days=end))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            # From Python 3.13 on a default context insists on these three.
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
                critical=False,
            )
            .add_extension(
                x509.KeyUsage(
                    digital_signature=True,
                    content_commitment=False,
                    key_encipherment=not authority,
                    data_encipherment=False,
                    key_agreement=False,
                    key_cert_sign=authority,
                    crl_sign=authority,
                    encipher_only=False,
                    decipher_only=False,
                ),
                critical=True,
            )
        )
        if hosts:
            names = [alternative(host) for host in hosts]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self.key, hashes.SHA256())

    def _write(self, name, certificate):
        path = self.folder / name
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return str(path)


def alternative(host):
    """
    Return the name of a host as certificates contain it.
    """
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def tls_block(pair, **more):
    """
    Return the ``tls`` block of a server's configuration for a certificate and its key.
    """
    return {"cert_file": pair[0], "key_file": pair[1], "timeout": 30, **more}
