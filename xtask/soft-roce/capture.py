"""Counts the opcodes of the RoCE v2 packets on a network interface, for each sender.

    python3 capture.py va     until SIGTERM or SIGINT, as root; then one line for each sender

A packet number that comes again with the same opcode is a packet that was sent again. Two errors
are the sending device's own, whatever a program posts: a packet number that comes again with
another opcode, and an immediate of a slot that comes again under another packet number (no slot's
use count is posted twice).
"""

import collections
import signal
import socket
import struct
import sys

PORT = (4791).to_bytes(2, "big")
# Ethernet, IPv4, UDP, BTH, RETH and the immediate end at byte 74.
ENOUGH = 96
# Set in the immediate of a control message.
CONTROL = 1 << 31
NAMES = {
    0x06: "WRITE_FIRST", 0x07: "WRITE_MIDDLE", 0x08: "WRITE_LAST", 0x09: "WRITE_LAST_WITH_IMM",
    0x0A: "WRITE_ONLY", 0x0B: "WRITE_ONLY_WITH_IMM", 0x11: "ACKNOWLEDGE",
}
# Offset of the immediate behind the begin of the base header.
IMMEDIATE = {0x09: 12, 0x0B: 28}
# Numbers of Linux that the module `socket` lacks.
ETH_P_ALL, SO_RCVBUFFORCE, SOL_PACKET, PACKET_STATISTICS = 3, 33, 263, 6


def name(opcode):
    return NAMES.get(opcode, f"opcode_{opcode:#04x}")


class Sender:
    def __init__(self):
        self.opcodes, self.seen, self.immediates = collections.Counter(), {}, {}
        self.again = self.other_opcode = self.other_number = 0

    def take(self, opcode, pair, number, immediate):
        before = None
        if opcode <= 0x0C:
            before = self.seen.get((pair, number))
            self.seen[pair, number] = opcode
        if before is None:
            self.opcodes[opcode] += 1
        elif before == opcode:
            self.again += 1
        else:
            self.other_opcode += 1
            print(f"queue pair {pair}: packet {number} was {name(before)} and is {name(opcode)}")
        if immediate is None or immediate & CONTROL:
            return
        before = self.immediates.get((pair, immediate), number)
        self.immediates[pair, immediate] = number
        if before != number:
            self.other_number += 1
            print(f"queue pair {pair}: immediate {immediate:#010x} of packet {before} comes again "
                  f"as packet {number}")


def read(senders, frame):
    if frame[12:14] != b"\x08\x00" or frame[14] >> 4 != 4 or frame[23] != socket.IPPROTO_UDP:
        return
    udp = 14 + 4 * (frame[14] & 15)
    if frame[udp + 2 : udp + 4] != PORT:
        return
    bth = udp + 8
    opcode, pair, number = struct.unpack_from("!B3xII", frame, bth)
    at, immediate = IMMEDIATE.get(opcode), None
    if at is not None:
        (immediate,) = struct.unpack_from("!I", frame, bth + at)
    sender = senders[socket.inet_ntoa(frame[26:30])]
    sender.take(opcode, pair & 0xFFFFFF, number & 0xFFFFFF, immediate)


def main(interface):
    ended = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.append(True))
    packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    packets.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 256 << 20)
    packets.bind((interface, ETH_P_ALL))
    packets.settimeout(0.2)
    print(f"counting on {interface}", flush=True)
    senders = collections.defaultdict(Sender)
    while True:
        try:
            read(senders, packets.recv(ENOUGH))
        except (IndexError, struct.error):
            pass  # Too short for a RoCE packet.
        except TimeoutError:
            # Packets from before the signal have been counted.
            if ended:
                break
    for sender, s in sorted(senders.items()):
        counts = ", ".join(f"{name(opcode)} {n}" for opcode, n in sorted(s.opcodes.items()))
        print(f"from {sender}: {counts}; sent again {s.again}; of those with another opcode "
              f"{s.other_opcode}; immediates under another packet number {s.other_number}")
    missed = struct.unpack("II", packets.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))[1]
    print(f"packets missed: {missed}")


main(sys.argv[1])
