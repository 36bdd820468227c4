"""Which hosts and addresses may be reached."""

from __future__ import annotations

import ipaddress

import pytest

from app.fetching.egress import EgressPolicy, is_public
from app.fetching.hosts import AllowedHosts

PUBLIC = ["93.184.215.14", "1.1.1.1", "2606:4700::1111", "64:ff9b::1.1.1.1", "::ffff:1.1.1.1", "2002:101:101::1"]
PRIVATE = [
    *("0.0.0.0", "0.1.2.3", "10.1.2.3", "100.64.0.1", "127.0.0.1", "127.9.9.9", "169.254.169.254", "172.16.0.1"),
    *("172.31.255.255", "192.0.0.8", "192.0.2.1", "192.88.99.1", "192.168.0.1", "198.18.0.1", "198.51.100.1"),
    *("203.0.113.1", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255"),
    *("::", "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1", "64:ff9b::10.0.0.1", "64:ff9b:1::1", "100::1"),
    *("2001::1", "2001:db8::1", "2002:7f00:1::1", "2002:a00:1::1", "3fff::1", "5f00::1", "fc00::1", "fd12::1"),
    *("fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "2001:10::1"),
]
METADATA = [
    *("169.254.169.254", "169.254.170.2", "::ffff:169.254.169.254", "64:ff9b::169.254.169.254", "fe80::1"),
    *("fe80::1%eth0", "fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "168.63.129.16", "192.0.0.192"),
]


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_allowed_on_web_ports(address: str) -> None:
    assert is_public(ipaddress.ip_address(address)) and EgressPolicy().allows(address)
    assert EgressPolicy().allows_port(address, 443) and not EgressPolicy().allows_port(address, 22)


@pytest.mark.parametrize("address", PRIVATE)
def test_addresses_that_are_not_public_are_refused(address: str) -> None:
    assert not EgressPolicy().allows(address)
    everything = EgressPolicy(networks=(ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0")))
    assert everything.allows(address) is everything.allows_port(address, 22) is (address not in METADATA)


@pytest.mark.parametrize("address", METADATA)
def test_a_metadata_service_is_refused_whatever_is_allowed(address: str) -> None:
    everything = (ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0"))
    for policy in (EgressPolicy(everything), EgressPolicy(internal=True), EgressPolicy(everything, internal=True)):
        assert not policy.allows(address)


def test_allowing_one_network_allows_no_other() -> None:
    reach = EgressPolicy(networks=(ipaddress.ip_network("10.1.0.0/16"), ipaddress.ip_network("fd00::/8")))
    assert reach.allows("10.1.2.3") and reach.allows_port("10.1.2.3", 8080) and reach.allows("fd12::1")
    assert not reach.allows("10.2.0.1") and not reach.allows("127.0.0.1") and not reach.allows_port("1.1.1.1", 8080)


# -- hosts that an operator allows ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listed", "asked", "allowed"),
    [
        ("files.example", ("files.example", 443), True),
        ("files.example", ("FILES.example.", 80), True),
        ("files.example", ("files.example", 9000), False),
        ("files.example:9000", ("files.example", 9000), True),
        ("files.example:9000", ("files.example", 443), False),
        ("files.example", ("a.files.example", 443), False),
        ("files.example", ("evilfiles.example", 443), False),
        ("files.example", ("files.example.evil.test", 443), False),
        ("*.files.example", ("a.b.files.example", 443), True),
        ("*.files.example", ("files.example", 443), False),
        ("*.files.example", ("evilfiles.example", 443), False),
        ("*.files.example:8443", ("a.files.example", 8443), True),
        ("*", ("anything.test", 443), True),
        ("*", ("anything.test", 22), False),
        ("127.0.0.1:9000", ("127.0.0.1", 9000), True),
        ("127.0.0.1", ("2130706433", 80), False),
        ("127.0.0.1", ("127.1", 80), False),
        ("[::1]:9000", ("::1", 9000), True),
        ("[fd00::1]", ("fd00::1", 443), True),
    ],
)
def test_a_host_is_allowed_by_its_name_and_port(listed: str, asked: tuple[str, int], allowed: bool) -> None:
    assert (AllowedHosts([listed]).policy(*asked) is not None) is allowed


def test_no_host_is_allowed_by_an_empty_list() -> None:
    assert not AllowedHosts(()) and AllowedHosts(()).policy("files.example", 443) is None


def test_only_a_host_that_is_named_exactly_may_have_an_address_that_is_not_public() -> None:
    hosts = AllowedHosts(["files.internal:9000", "*.internal", "*"])
    exact, below, other = (
        hosts.policy(*asked) for asked in (("files.internal", 9000), ("files.internal", 80), ("a.test", 80))
    )
    assert exact is not None and below is not None and other is not None
    for address in ("10.1.2.3", "192.168.0.1", "127.0.0.1", "::1", "fd12::1", "1.1.1.1"):
        assert exact.allows(address) and below.allows(address) is other.allows(address) is (address == "1.1.1.1")


@pytest.mark.parametrize(
    "address",
    [
        *("169.254.169.254", "::ffff:169.254.169.254", "64:ff9b::169.254.169.254", "fe80::1", "fe80::1%eth0"),
        *("0.0.0.0", "0.1.2.3", "::", "224.0.0.1", "ff02::1", "240.0.0.1", "255.255.255.255", "fec0::1"),
    ],
)
def test_no_host_may_have_an_address_of_no_server_or_of_a_cloud_s_metadata(address: str) -> None:
    for listed in ("files.internal", "*"):
        policy = AllowedHosts([listed]).policy("files.internal", 80)
        assert policy is not None and not policy.allows(address)
