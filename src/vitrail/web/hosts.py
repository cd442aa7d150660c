"""Host names a server answers to, which prevents DNS rebinding.

A web site can point its own name to a local address and so reach a local server from a visitor's browser. The browser
then sends the site's name as the host, so a server that only accepts its own names is safe. Addresses cannot be used
in this way and are always accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address


def host_name(host: str) -> str:
    """A host without its port, in lower case.

    Example:
        >>> host_name("Localhost:8000"), host_name("[::1]:8000"), host_name("127.0.0.1"), host_name("example.org.")
        ('localhost', '::1', '127.0.0.1', 'example.org')
    """
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name.rstrip(".").lower()


def is_address(name: str) -> bool:
    """Whether a name is an IP address.

    Example:
        >>> is_address("192.168.0.7"), is_address("::1"), is_address("example.org")
        (True, True, False)
    """
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(name: str) -> bool:
    """Whether only programs on the same machine can reach a host: localhost, 127.0.0.0/8 and ::1.

    Example:
        >>> [is_loopback(name) for name in ("localhost", "127.0.0.1", "127.8.9.1", "::1", "0.0.0.0", "example.org")]
        [True, True, True, True, False, False]
    """
    return ip_address(name).is_loopback if is_address(name) else name == "localhost"


def is_allowed(host: str, names: Sequence[str]) -> bool:
    """Whether a server with these names answers to the value of a Host header.

    Example:
        >>> [is_allowed(h, ["demo.example.org"]) for h in ("127.0.0.1:80", "demo.example.org", "evil.example", "")]
        [True, True, False, False]
    """
    name = host_name(host)
    return is_address(name) or name == "localhost" or name in [host_name(one) for one in names]
