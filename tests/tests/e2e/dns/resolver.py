"""A name server for tests: resolver.py ADDRESS LOG. It writes each question to the log, and answers for `.test`:
`big.test` with more addresses than UDP has room for; `none.test` and other names do not exist."""

import socket
import struct
import sys
import threading


def reply(packet, over_udp):
    labels, at = [], 12
    while packet[at]:
        labels.append(packet[at + 1 : at + 1 + packet[at]].decode().lower())
        at += 1 + packet[at]
    kind = struct.unpack_from("!H", packet, at + 1)[0]
    question = packet[12 : at + 5]
    name = ".".join(labels)
    log.write(f"{name} {kind} {'udp' if over_udp else 'tcp'}\n")
    log.flush()
    addresses, code, flags = [], 0, 0x8180
    if not name.endswith(".test") or name.endswith("none.test"):
        code = 3
    elif kind == 1:
        addresses = [bytes([203, 0, 113, last]) for last in range(200 if name == "big.test" else 1)]
    if over_udp and len(addresses) > 20:
        addresses, flags = [], flags | 0x0200
    records = b"".join(b"\xc0\x0c" + struct.pack("!HHIH", 1, 1, 300, 4) + address for address in addresses)
    return packet[:2] + struct.pack("!HHHHH", flags | code, 1, len(addresses), 0, 0) + question + records


def over_tcp(listener):
    while True:
        connection, _ = listener.accept()
        size = struct.unpack("!H", connection.recv(2, socket.MSG_WAITALL))[0]
        answer = reply(connection.recv(size, socket.MSG_WAITALL), False)
        connection.sendall(struct.pack("!H", len(answer)) + answer)
        connection.close()


address = sys.argv[1]
log = open(sys.argv[2], "a")
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind((address, 53))
tcp = socket.create_server((address, 53))
threading.Thread(target=over_tcp, args=[tcp], daemon=True).start()
while True:
    packet, client = udp.recvfrom(4096)
    udp.sendto(reply(packet, True), client)
