"""TLS between two sides of this package; RocketMQ's own sides have none."""

from __future__ import annotations

import ssl

from tubestore.errors import InvalidMessage


def server_context(
    certificate: str, key: str | None = None, authorities: str | None = None
) -> ssl.SSLContext:
    """Return the context of a master with this certificate; paths are of PEM files.

    With `authorities` a slave has to show a certificate of one of them. InvalidMessage for a file
    that cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load(context, certificate, key)
    if authorities is not None:
        _trust(context, authorities)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(
    authorities: str, certificate: str | None = None, key: str | None = None
) -> ssl.SSLContext:
    """Return the context of a slave that trusts masters with a certificate of `authorities`.

    `certificate` is the slave's own. InvalidMessage for a file that cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _trust(context, authorities)
    if certificate is not None:
        _load(context, certificate, key)
    return context


def _load(context: ssl.SSLContext, certificate: str, key: str | None) -> None:
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:
        raise InvalidMessage(
            f"{certificate}: is not a certificate with its key: {error}"
        ) from error


def _trust(context: ssl.SSLContext, authorities: str) -> None:
    try:
        context.load_verify_locations(authorities)
    except OSError as error:
        raise InvalidMessage(f"{authorities}: has no certificates: {error}") from error
