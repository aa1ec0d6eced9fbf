"""Asks a name server: ask.py SERVER PORT udp|tcp NAME TYPE. Prints the code and the flags, then the records."""

import random
import socket
import struct
import sys

TYPES = {"A": 1, "NS": 2, "CNAME": 5, "SOA": 6, "PTR": 12, "TXT": 16, "AAAA": 28, "SRV": 33, "AXFR": 252}
NAMES = {number: name for name, number in TYPES.items()}
CODES = ["NOERROR", "FORMERR", "SERVFAIL", "NXDOMAIN", "NOTIMP", "REFUSED"]


def name_at(packet, at):
    labels, end = [], None
    while True:
        length = packet[at]
        if length & 0xC0:
            end = end or at + 2
            at = struct.unpack_from("!H", packet, at)[0] & 0x3FFF
        elif length == 0:
            return ".".join(labels), end or at + 1
        else:
            labels.append(packet[at + 1 : at + 1 + length].decode())
            at += 1 + length


def data_at(packet, kind, at, length):
    if kind in ("NS", "CNAME", "PTR"):
        return name_at(packet, at)[0]
    if kind == "SRV":
        return "{} {} {} ".format(*struct.unpack_from("!HHH", packet, at)) + name_at(packet, at + 6)[0]
    if kind == "SOA":
        return name_at(packet, at)[0]
    if kind == "TXT":
        return packet[at + 1 : at + length].decode()
    if kind in ("A", "AAAA"):
        return socket.inet_ntop(socket.AF_INET if kind == "A" else socket.AF_INET6, packet[at : at + length])
    return packet[at : at + length].hex()


def received(connection, size):
    whole = b""
    while len(whole) < size:
        part = connection.recv(size - len(whole))
        if not part:
            raise OSError("closed without an answer")
        whole += part
    return whole


def main():
    server, port, transport, name, kind = sys.argv[1:]
    number = random.randrange(65536)
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split(".") if label)
    question = labels + b"\0" + struct.pack("!HH", TYPES[kind], 1)
    packet = struct.pack("!HHHHHH", number, 0x0100, 1, 0, 0, 0) + question
    try:
        if transport == "udp":
            connection = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            connection.settimeout(5)
            connection.connect((server, int(port)))
            connection.send(packet)
            reply = connection.recv(65535)
        else:
            connection = socket.create_connection((server, int(port)), 5)
            connection.settimeout(5)
            connection.sendall(struct.pack("!H", len(packet)) + packet)
            reply = received(connection, struct.unpack("!H", received(connection, 2))[0])
    except OSError as error:
        sys.exit(f"no answer: {error}")
    answered, flags, _, answers, authorities, additionals = struct.unpack_from("!HHHHHH", reply)
    assert answered == number and reply[12 : 12 + len(question)] == question, "the answer is to another question"
    words = [word for word, bit in [("aa", 0x0400), ("tc", 0x0200), ("ra", 0x0080)] if flags & bit]
    print(" ".join([CODES[flags & 15], *words]))
    at = 12 + len(question)
    for section, count in [("", answers), ("authority: ", authorities), ("additional: ", additionals)]:
        for _ in range(count):
            owner, at = name_at(reply, at)
            number, _, ttl, length = struct.unpack_from("!HHIH", reply, at)
            kind = NAMES.get(number, str(number))
            print(f"{section}{owner} {kind} {data_at(reply, kind, at + 10, length)}")
            at += 10 + length


main()
