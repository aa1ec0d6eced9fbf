#!/usr/bin/env python3
"""Records what a real Docker Engine answers, for the readers of agent/src/engine: `record-docker.py [ROOT]`.

It starts the machine's engine, or that of the root directory ROOT (`debootstrap --include=docker.io,containerd,runc`), with data
and a network of its own, once with each image store that it has. Each answer becomes a file below agent/src/engine/recorded:
its first line is the request, the status and the content type, the rest the body as it came. Names of this machine and of
its directories are replaced by those of a usual installation.
"""

import base64
import http.client
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.parse

ROOT = sys.argv[1] if len(sys.argv) > 1 else None
OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../agent/src/engine/recorded")
# docker_api.rs: ApiVersion::NEWEST
NEWEST = (1, 51)
REGISTRY = "127.0.0.1:5000"
OF_PODS = "io.kubernetes.docker.type"
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}


class Connection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("docker", timeout=120)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Engine:
    def __init__(self, snapshotter):
        self.dir = tempfile.mkdtemp(prefix="windlass-record-")
        at = lambda name: os.path.join(self.dir, name)
        with open(at("containerd.toml"), "w") as file:
            file.write('version = 2\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n')
        with open(at("daemon.json"), "w") as file:
            json.dump({"features": {"containerd-snapshotter": True}} if snapshotter else {}, file)
        with open(at("registry.yml"), "w") as file:
            file.write("version: 0.1\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: '%s'}\n" % (at("registry"), REGISTRY))
        self.log = open(at("log"), "wb")
        programs = ["sh", "-c", 'mount --rbind "$0/usr" /usr && exec "$@"', ROOT] if ROOT else []
        containerd = ["containerd", "--config", at("containerd.toml"), "--address", at("containerd.sock"), "--root", at("containerd"), "--state", at("state")]
        self.containerd = self.spawn(["unshare", "--net", "--mount", "--propagation", "slave", *programs, *containerd])
        self.wait_for(at("containerd.sock"))
        inside = ["nsenter", "--target", str(self.containerd.pid), "--net"]
        subprocess.run([*inside, "ip", "link", "set", "lo", "up"], check=True)
        self.registry = self.spawn([*inside, "docker-registry", "serve", at("registry.yml")])
        self.dockerd = self.spawn(
            [*inside, "--mount", "dockerd", "--bridge=none", "--iptables=false", "--config-file", at("daemon.json"),
             "--pidfile", at("docker.pid"), "--data-root", at("data"), "--exec-root", at("exec"),
             "--host", "unix://" + at("docker.sock"), "--containerd", at("containerd.sock")])
        self.wait_for(at("docker.sock"))
        self.version = json.loads(self.ask("GET", "/version")[1])
        spoken = min(NEWEST, tuple(int(n) for n in self.version["ApiVersion"].split(".")))
        self.prefix = "/v%d.%d" % spoken
        store = "containerd" if snapshotter else "graph-drivers"
        self.out = os.path.join(OUT, "%s-%s" % (re.match(r"\d+\.\d+\.\d+", self.version["Version"])[0], store))
        shutil.rmtree(self.out, ignore_errors=True)
        os.makedirs(self.out)

    def spawn(self, command):
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, env=ENVIRONMENT)

    def wait_for(self, path):
        for _ in range(600):
            if os.path.exists(path):
                return
            time.sleep(0.1)
        raise RuntimeError("%s is not there; see %s" % (path, self.log.name))

    def ask(self, method, path, body=None, headers=None):
        for _ in range(100):
            try:
                connection = Connection(os.path.join(self.dir, "docker.sock"))
                data = json.dumps(body) if isinstance(body, dict) else body
                connection.request(method, getattr(self, "prefix", "") + path, data, {"Content-Type": "application/json", **(headers or {})})
                answer = connection.getresponse()
                return answer.status, answer.read(), answer.getheader("Content-Type", "")
            except ConnectionRefusedError:
                time.sleep(0.1)
        raise RuntimeError("the engine does not answer")

    def do(self, method, path, body=None, headers=None):
        status, answer, _ = self.ask(method, path, body, headers)
        if status >= 400:
            raise RuntimeError("%s %s: %d %s" % (method, path, status, answer))
        return json.loads(answer) if answer[:1] == b"{" and b"\r\n{" not in answer else answer

    def record(self, name, method, path, body=None, called=None):
        """Records the answer to a request; `called` is what the request is known by, if not by its path."""
        status, answer, kind = self.ask(method, path, body, {"X-Registry-Auth": base64.urlsafe_b64encode(b"{}").decode()} if "fromImage" in path else None)
        text = answer.decode()
        for what, usual in [
            (os.path.join(self.dir, "data"), "/var/lib/docker"),
            (os.path.join(self.dir, "exec"), "/var/run/docker"),
            (os.path.join(self.dir, "containerd.sock"), "/run/containerd/containerd.sock"),
            (self.dir, "/run/docker"),
            (socket.gethostname(), "host"),
        ]:
            text = text.replace(what, usual)
        for secret in ["KernelVersion", "kernel", "OperatingSystem", "OSVersion", "ID" if path == "/info" else None]:
            if secret:
                text = re.sub(r'"%s":"[^"]*"' % secret, '"%s":"recorded"' % secret, text)
        with open(os.path.join(self.out, name), "w", newline="") as file:
            file.write("%s %s %d %s\n%s" % (method, called or path.split("?")[0], status, kind, text))
        return status, text

    def container(self, name, script, labels=None, start=True, **more):
        config = {"Image": "rec/busybox:1", "Entrypoint": ["/bin/sh", "-c"], "Cmd": [script], "Labels": labels or {}, **more}
        config["HostConfig"] = {"NetworkMode": "none", **more.get("HostConfig", {})}
        made = self.do("POST", "/containers/create?name=" + name, config)["Id"]
        if start:
            status, answer, _ = self.ask("POST", "/containers/%s/start" % made)
            if status >= 400 and "broken" not in name:
                raise RuntimeError("%s: %s" % (name, answer))
        return made

    def of_pod(self, name, script, start=True, **more):
        kind = "podsandbox" if name == "POD" else "container"
        labels = {OF_PODS: kind, "io.kubernetes.container.name": name, "io.kubernetes.pod.name": "p",
                  "io.kubernetes.pod.namespace": "n", "io.kubernetes.pod.uid": "u", "io.windlass.pod.ip": "10.244.0.2"}
        return self.container("k8s_%s_p_n_u_0" % name, script, labels, start, **more)

    def until(self, container, check):
        for _ in range(300):
            if check(self.do("GET", "/containers/%s/json" % container)["State"]):
                return
            time.sleep(0.1)
        raise RuntimeError("%s does not become what it is to be" % container)

    def end(self):
        for process in [self.dockerd, self.registry, self.containerd]:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        with open("/proc/self/mountinfo") as table:
            mounts = [line.split(" ")[4] for line in table]
        for mount in reversed([mount for mount in mounts if mount.startswith(self.dir + "/")]):
            subprocess.run(["umount", "-l", mount], check=False)
        shutil.rmtree(self.dir, ignore_errors=True)


def file_system():
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.add(shutil.which("busybox"), "bin/sh")
        for name in ["sleep", "dd", "true"]:
            link = tarfile.TarInfo("bin/" + name)
            link.type, link.linkname = tarfile.SYMTYPE, "sh"
            archive.addfile(link)
    return out.getvalue()


def images(engine):
    engine.do("POST", "/images/create?fromSrc=-&repo=rec/busybox&tag=1", file_system(), {"Content-Type": "application/x-tar"})
    # An image of two layers, with a user, and two names in a registry.
    made = engine.container("layer", "dd if=/dev/urandom of=/big bs=1M count=12")
    engine.until(made, lambda state: state["Status"] == "exited")
    engine.do("POST", "/commit?container=layer&repo=%s/rec/layers&tag=1&changes=%s" % (REGISTRY, urllib.parse.quote("USER 1000")), {})
    engine.do("DELETE", "/containers/layer")
    name = REGISTRY + "/rec/layers:1"
    auth = {"X-Registry-Auth": base64.urlsafe_b64encode(b"{}").decode()}
    engine.do("POST", "/images/%s/rec/layers/push?tag=1" % REGISTRY, b"", auth)
    engine.do("DELETE", "/images/" + name)
    # Its lower layer is there: one that is fetched and one that exists already.
    engine.record("pull", "POST", "/images/create?fromImage=" + name, called="/images/create " + name)
    engine.record("pull-again", "POST", "/images/create?fromImage=" + name, called="/images/create again")
    missing = REGISTRY + "/rec/nothing:1"
    engine.record("pull-missing", "POST", "/images/create?fromImage=" + missing, called="/images/create " + missing)
    engine.do("POST", "/images/%s/tag?repo=rec/other&tag=2" % name)
    engine.do("POST", "/images/create?fromSrc=-&repo=rec/nameless&tag=1", file_system() + b"\0" * 512, {"Content-Type": "application/x-tar"})
    engine.record("images", "GET", "/images/json")
    engine.record("image", "GET", "/images/%s/json" % name)
    engine.record("image-local", "GET", "/images/rec/busybox:1/json")
    engine.record("image-missing", "GET", "/images/rec/nothing:1/json")


def containers(engine):
    stay = "while :; do sleep 1; done"
    engine.of_pod("POD", stay)
    engine.of_pod("created", stay, start=False)
    main = engine.of_pod("main", stay, HostConfig={"Memory": 64 << 20, "MemorySwap": 64 << 20, "CpuShares": 512, "CpuPeriod": 100000, "CpuQuota": 50000})
    paused = engine.of_pod("paused", stay)
    engine.do("POST", "/containers/%s/pause" % paused)
    exited = engine.of_pod("exited", "echo said; exit 3")
    killed = engine.of_pod("killed", stay)
    engine.do("POST", "/containers/%s/kill" % killed)
    oom = engine.of_pod("oom", "x=a; while :; do x=$x$x; done", HostConfig={"Memory": 8 << 20, "MemorySwap": 8 << 20})
    engine.of_pod("broken", "", Entrypoint=["/nowhere"])
    for ended in [exited, killed, oom]:
        engine.until(ended, lambda state: state["Status"] == "exited")
    gone = engine.of_pod("gone", stay)
    engine.do("DELETE", "/containers/%s?force=true" % gone)
    engine.container("windlass-helper", "none", {OF_PODS: "windlass-helper"}, start=False)
    web = engine.container("web", stay, Healthcheck={"Test": ["CMD", "/bin/true"], "Interval": 10**9})
    engine.until(web, lambda state: state.get("Health", {}).get("Status") == "healthy")
    again = engine.container("again", "exit 1", HostConfig={"RestartPolicy": {"Name": "always"}})
    engine.until(again, lambda state: state["Status"] == "restarting")
    # Nothing changes while they are recorded.
    engine.record("containers", "GET", "/containers/json?all=true", called="/containers/json")
    for name in ["POD", "created", "main", "paused", "exited", "killed", "oom", "broken"]:
        identity = engine.do("GET", "/containers/k8s_%s_p_n_u_0/json" % name)["Id"]
        engine.record("inspect-" + name, "GET", "/containers/%s/json" % identity)
    for name in ["windlass-helper", "web", "again"]:
        identity = engine.do("GET", "/containers/%s/json" % name)["Id"]
        engine.record("inspect-" + name, "GET", "/containers/%s/json" % identity)
    engine.record("inspect-missing", "GET", "/containers/%s/json" % gone)
    return main


def commands(engine, main):
    for name, command in [("exec-ended", ["/bin/sh", "-c", "exit 7"]), ("exec-broken", ["/nowhere"]), ("exec-runs", ["/bin/sleep", "1000"])]:
        made = engine.do("POST", "/containers/%s/exec" % main, {"Cmd": command})["Id"]
        engine.ask("POST", "/exec/%s/start" % made, {"Detach": True})
        time.sleep(1)
        engine.record(name, "GET", "/exec/%s/json" % made, called="/exec/%s/json" % name)
    engine.record("exec-missing", "GET", "/exec/%s/json" % ("0" * 64), called="/exec/exec-missing/json")


def events(engine, since):
    # Those of agent/src/engine/{events,unmanaged}.rs.
    pods = {"type": ["container"], "label": [OF_PODS], "event": ["start", "die", "destroy"]}
    of_images = {"type": ["image"], "event": ["tag", "untag", "delete", "pull", "load", "import"]}
    others = {"type": ["container"], "event": ["start", "die", "destroy", "health_status", "rename", "update"]}
    for name, filters in [("pods", pods), ("images", of_images), ("others", others), ("all", {})]:
        query = {"since": since, "until": "%.9f" % time.time(), "filters": json.dumps(filters)}
        engine.record("events-" + name, "GET", "/events?" + urllib.parse.urlencode(query), called="/events " + name)


def record(snapshotter):
    engine = Engine(snapshotter)
    try:
        since = "%.9f" % time.time()
        engine.record("version", "GET", "/version")
        engine.record("info", "GET", "/info")
        images(engine)
        commands(engine, containers(engine))
        engine.do("POST", "/containers/web/rename?name=renamed")
        engine.do("DELETE", "/containers/again?force=true")
        events(engine, since)
        print("recorded", os.path.basename(engine.out))
        for container in json.loads(engine.ask("GET", "/containers/json?all=true")[1]):
            engine.ask("DELETE", "/containers/%s?force=true&v=true" % container["Id"])
        return tuple(int(n) for n in engine.version["ApiVersion"].split("."))
    finally:
        engine.end()


# Engines before 25 have one store.
if record(False) >= (1, 44):
    record(True)
