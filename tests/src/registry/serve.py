"""A registry that fails as it is asked to: `serve.py PORT IMAGE.tar FOLDER`.

Every repository has every tag: the image of the archive with one more layer, which is the tag's own, so that Docker has to
fetch it. What a tag begins with says how its pull ends: `windows` has no manifest for this platform, `corrupt` serves other
bytes than it promises, `hangs` never answers, `slow` takes seconds for its layer, and `status-429` answers 429 until
FOLDER/well is there. Any other works, but while FOLDER/cut is there its layer breaks off in the middle.
"""

import hashlib
import io
import json
import os
import random
import re
import sys
import tarfile
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT, ARCHIVE, FOLDER = int(sys.argv[1]), sys.argv[2], sys.argv[3]
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
SIZE = 2 << 20

# The codes of errors, as https://distribution.github.io/distribution/spec/api/#errors-2 has them.
CODES = {401: "UNAUTHORIZED", 403: "DENIED", 404: "MANIFEST_UNKNOWN", 429: "TOOMANYREQUESTS"}

blobs = {}
corrupt = set()
slow = set()


def keep(blob):
    digest = "sha256:" + hashlib.sha256(blob).hexdigest()
    blobs[digest] = blob
    return {"size": len(blob), "digest": digest}


with tarfile.open(ARCHIVE) as saved:
    entry = json.load(saved.extractfile("manifest.json"))[0]
    config = json.load(saved.extractfile(entry["Config"]))
    lower = [keep(saved.extractfile(layer).read()) for layer in entry["Layers"]]


def layer_of(name):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as layer:
        info = tarfile.TarInfo("layer-of-the-tag")
        info.size = SIZE
        layer.addfile(info, io.BytesIO(random.Random(name).randbytes(SIZE)))
    return keep(out.getvalue())


def manifest_of(repository, tag):
    if tag.startswith("windows"):
        platform = {"architecture": "amd64", "os": "windows"}
        one = {"mediaType": MANIFEST, "size": 2, "digest": "sha256:" + "0" * 64, "platform": platform}
        return LIST, json.dumps({"schemaVersion": 2, "mediaType": LIST, "manifests": [one]}).encode()
    own = layer_of(repository + ":" + tag)
    if tag.startswith("corrupt"):
        corrupt.add(own["digest"])
    if tag.startswith("slow"):
        slow.add(own["digest"])
    described = dict(config)
    described["rootfs"] = {"type": "layers", "diff_ids": config["rootfs"]["diff_ids"] + [own["digest"]]}
    described["history"] = config.get("history", []) + [{"created_by": "serve.py " + tag}]
    kind = "application/vnd.docker.image.rootfs.diff.tar"
    layers = [dict(layer, mediaType=kind) for layer in lower + [own]]
    of_config = dict(keep(json.dumps(described).encode()), mediaType="application/vnd.docker.container.image.v1+json")
    body = {"schemaVersion": 2, "mediaType": MANIFEST, "config": of_config, "layers": layers}
    return MANIFEST, json.dumps(body).encode()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, kind, body, headers=()):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for key, value in headers:
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status):
        error = {"code": CODES.get(status, "UNKNOWN"), "message": "the registry says so"}
        headers = {401: [("WWW-Authenticate", 'Basic realm="test"')], 429: [("Retry-After", "1")]}.get(status, [])
        self.answer(status, "application/json", json.dumps({"errors": [error]}).encode(), headers)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        if self.path.rstrip("/") == "/v2":
            return self.answer(200, "application/json", b"{}")
        found = re.fullmatch(r"/v2/(.+)/manifests/(.+)", self.path)
        if found and not found[2].startswith("sha256:"):
            if found[2].startswith("hangs"):
                time.sleep(3600)
            asked = re.match(r"status-(\d+)", found[2])
            if asked and not os.path.exists(os.path.join(FOLDER, "well")):
                return self.refuse(int(asked[1]))
            kind, body = manifest_of(found[1], found[2])
            digest = keep(body)["digest"]
            return self.answer(200, kind, body, [("Docker-Content-Digest", digest)])
        found = re.fullmatch(r"/v2/.+/(?:manifests|blobs)/(sha256:[0-9a-f]{64})", self.path)
        blob = blobs.get(found[1]) if found else None
        if blob is None:
            return self.answer(404, "application/json", b'{"errors":[{"code":"NAME_UNKNOWN"}]}')
        if "/manifests/" in self.path:
            return self.answer(200, json.loads(blob)["mediaType"], blob, [("Docker-Content-Digest", found[1])])
        if found[1] in corrupt:
            blob = bytes(len(blob))
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        begin = min(int(asked[1]), len(blob)) if asked else 0
        ranges = [("Content-Range", f"bytes {begin}-{len(blob) - 1}/{len(blob)}")] if asked else []
        status, part = (206 if asked else 200), blob[begin:]
        if len(blob) > SIZE and os.path.exists(os.path.join(FOLDER, "cut")):
            self.send_response(status)
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(len(part)))
            for key, value in ranges:
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(part[: len(part) // 2])
            self.close_connection = True
            return None
        if found[1] in slow:
            self.send_response(status)
            self.send_header("Content-Length", str(len(part)))
            for key, value in ranges:
                self.send_header(key, value)
            self.end_headers()
            for at in range(0, len(part), 1 << 16):
                time.sleep(0.1)
                self.wfile.write(part[at : at + (1 << 16)])
            return None
        return self.answer(status, "application/octet-stream", part, ranges)


ThreadingHTTPServer(("127.0.0.1", PORT), Handler).serve_forever()
