# Answers what rows ask for, and writes down who asked: HTTP on 8101, HTTPS on 8102, gRPC health on 8103, and a
# registry that is out of order on 8104. Arguments: the file to write to, a certificate with its key.
import http.server, json, socket, ssl, sys, threading, time

log, lock = open(sys.argv[1], "a", buffering=1), threading.Lock()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        with lock:
            log.write(json.dumps({"path": self.path, "headers": {name.lower(): value for name, value in self.headers.items()}}) + "\n")
        what = self.path.strip("/").split("/")[-1]
        if what == "slow":
            time.sleep(5)
        code = int(what) if what.isdigit() else 302 if what in ("same", "other") else 200
        self.send_response(code)
        if what == "same":
            self.send_header("Location", self.path[: -len("same")] + "404")
        if what == "other":
            self.send_header("Location", "http://127.0.0.9:1/")
        self.send_header("Content-Length", "3")
        self.end_headers()
        self.wfile.write(b"ok\n")

    def log_message(self, *words):
        pass


class Broken(Handler):
    def do_GET(self):
        self.send_response(503)
        self.send_header("Content-Length", "0")
        self.end_headers()


def health(peer):
    """One HTTP/2 connection: whatever is asked, the service named `bad` does not serve and all others do."""
    stream = peer.makefile("rwb")

    def frame(kind, flags, number, body):
        stream.write(len(body).to_bytes(3, "big") + bytes([kind, flags]) + number.to_bytes(4, "big") + body)
        stream.flush()

    stream.read(24)
    frame(4, 0, 0, b"")
    while len(head := stream.read(9)) == 9:
        length, kind, flags, number = int.from_bytes(head[:3], "big"), head[3], head[4], int.from_bytes(head[5:], "big")
        body = stream.read(length)
        if kind == 4 and not flags & 1:
            frame(4, 1, 0, b"")
        if kind == 6 and not flags & 1:
            frame(6, 1, 0, body)
        if kind == 0 and body:
            serving = 2 if b"bad" in body else 1
            literal = lambda text: bytes([len(text)]) + text
            frame(1, 4, number, b"\x88\x0f\x10" + literal(b"application/grpc"))
            frame(0, 0, number, b"\x00\x00\x00\x00\x02\x08" + bytes([serving]))
            frame(1, 5, number, b"\x00" + literal(b"grpc-status") + literal(b"0"))


def grpc():
    listener = socket.create_server(("", 8103))
    while True:
        peer, _ = listener.accept()
        threading.Thread(target=health, args=[peer], daemon=True).start()


servers = [http.server.ThreadingHTTPServer(("", 8101 + n), kind) for n, kind in ((0, Handler), (1, Handler), (3, Broken))]
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[2])
servers[1].socket = context.wrap_socket(servers[1].socket, server_side=True, do_handshake_on_connect=False)
for one in servers:
    threading.Thread(target=one.serve_forever, daemon=True).start()
grpc()
