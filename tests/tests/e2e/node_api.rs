//! The node's HTTP API: its endpoints, their authorization, and limits against hostile clients.

use std::fs;

use serde_json::Value;
use windlass_tests::{DEFAULT_TIMEOUT, Daemon, Testbed, eventually};

use crate::shell_pod;

const NODE_API: &str = "https://198.18.0.1:10250";

/// Sends a request to the node's API; returns status code and body.
fn ask(testbed: &Testbed, options: &str, url: &str) -> (String, String) {
    let line = format!("curl -sSk --max-time 20 -w '\\n%{{http_code}}' {options} '{url}'");
    let answer = testbed.sh(&line);
    let (body, code) = answer.trim_end().rsplit_once('\n').expect("a status code");
    (code.to_owned(), body.to_owned())
}

fn certificate(testbed: &Testbed, name: &str) -> String {
    let pki = testbed.dir().join("data/pki");
    format!("--cert {0}/{name}.crt --key {0}/{name}.key", pki.display())
}

#[test]
fn the_node_api_requires_authorization() {
    let testbed = Testbed::new();
    let mut windlass = testbed.windlass();
    let kubectl = windlass.up();
    kubectl.apply(
        &shell_pod("told", "Always", "sleep 3600")
            .replace("command:", "env: [{name: PASSWORD, value: swordfish}]\n    command:"),
    );
    eventually(DEFAULT_TIMEOUT, "the pod is Ready", || kubectl.ready_pods("test=told", 1));
    let admin = certificate(&testbed, "admin");
    let get = |path: &str| {
        let (code, body) = ask(&testbed, &admin, &format!("{NODE_API}{path}"));
        assert_eq!(code, "200", "{path}: {body}");
        body
    };
    let json = |path: &str| -> Value { serde_json::from_str(&get(path)).expect("JSON") };
    for path in ["/healthz", "/healthz/ping", "/healthz/log", "/healthz/syncloop"] {
        assert_eq!(get(path), "ok", "{path}");
    }
    assert!(get("/healthz?verbose").contains("[+]syncloop ok\n[+]docker ok"));
    let pods = json("/pods");
    assert_eq!(pods["items"][0]["spec"]["containers"][0]["env"][0]["value"], "swordfish");
    assert_eq!(json("/runningpods/")["items"][0]["metadata"]["name"], "told");
    let config = json("/configz");
    assert_eq!(config["kubeletconfig"]["port"], 10250);
    assert_eq!(config["kubeletconfig"]["containerLogMaxSize"], "10485760");
    assert!(get("/flagz").contains("\nnode-name=node\n"));
    assert!(get("/statusz").contains("Up: "));
    assert!(get("/logs/").contains("<pre>"));
    assert_eq!(json("/stats/summary")["node"]["nodeName"], "node");
    assert_eq!(ask(&testbed, &format!("{admin} -X POST"), &format!("{NODE_API}/stats/summary")).0, "200");

    let large = testbed.dir().join("large");
    fs::write(&large, vec![b'x'; 100 << 10]).expect("a file");
    for (options, path, code, text) in [
        (admin.as_str(), "/nowhere", "404", ""),
        (&admin, "/healthz/nowhere", "404", ""),
        (&format!("{admin} --path-as-is"), "/logs/../../etc/passwd", "403", ""),
        (&format!("{admin} --path-as-is"), "/logs/..%2f..%2fetc/passwd", "403", ""),
        (&format!("{admin} -X POST"), "/configz", "405", ""),
        (&format!("{admin} --http1.1 --data-binary @{}", large.display()), "/stats/summary", "413", ""),
        ("", "/pods", "401", "Unauthorized"),
        ("", "/healthz", "401", "Unauthorized"),
        ("-H 'Authorization: Bearer nonsense'", "/pods", "401", "Unauthorized"),
    ] {
        let (got, output) = ask(&testbed, options, &format!("{NODE_API}{path}"));
        assert!(got == code && output.contains(text), "{options} {path}: {got} {output}");
    }
    // Authenticated, but not authorized: the message lists the rights that would allow the request.
    let token = kubectl.run(&["create", "token", "default"]);
    let bearer = format!("-H 'Authorization: Bearer {}'", token.trim());
    for (path, rights) in [("/configz", "configz proxy"), ("/metrics", "metrics"), ("/logs/", "log"), ("/x", "proxy")] {
        let output = ask(&testbed, &bearer, &format!("{NODE_API}{path}"));
        let text = format!(
            "Forbidden (user=system:serviceaccount:default:default, verb=get, resource=nodes, subresource(s)=[{rights}])"
        );
        assert_eq!(output, ("403".to_owned(), text), "{path}");
    }
    assert_eq!(ask(&testbed, &certificate(&testbed, "node"), &format!("{NODE_API}/pods")).0, "403");

    // The read-only port: on loopback only, without values and sensitive endpoints.
    let (code, body) = ask(&testbed, "", "http://127.0.0.1:10255/pods");
    assert!(code == "200" && body.contains("PASSWORD") && !body.contains("swordfish"), "{body}");
    for path in ["/configz", "/runningpods/", "/logs/", "/containerLogs/default/told/main"] {
        assert_eq!(ask(&testbed, "", &format!("http://127.0.0.1:10255{path}")).0, "404", "{path}");
    }
    assert!(testbed.try_sh_outside("curl -sS --max-time 5 http://198.18.0.1:10255/pods").is_err());
    assert_eq!(ask(&testbed, "", "http://127.0.0.1:10248/pods").0, "404");

    // An unresponsive Docker is reported and fails no request.
    let docker = nix::unistd::Pid::from_raw(i32::try_from(testbed.docker_pid()).expect("a process id"));
    nix::sys::signal::kill(docker, nix::sys::signal::Signal::SIGKILL).expect("Docker ends");
    eventually(DEFAULT_TIMEOUT, "it is told of", || {
        let (code, body) = ask(&testbed, "", "http://127.0.0.1:10248/healthz?verbose");
        anyhow::ensure!(code == "200" && body.contains("docker does not answer"), "{code} {body}");
        Ok(())
    });
}

/// Opens more connections than a server accepts, of three kinds, and holds them.
const HOSTILE: &str = r#"
import socket, ssl, sys, time
context = ssl.create_default_context(); context.check_hostname = False; context.verify_mode = ssl.CERT_NONE
held = []
for i in range(900):
    s = socket.create_connection(("198.18.0.1", 10250))
    if i % 3 == 1:
        s.send(b"\x16\x03\x01\x02")
    if i % 30 == 2:
        s = context.wrap_socket(s); s.send(b"GET /healthz HTTP/1.1\r\nHo")
    held.append(s)
print("held", flush=True)
time.sleep(3600)
"#;

#[test]
fn idle_connections_do_not_block_others() {
    let testbed = Testbed::new();
    let mut windlass = testbed.windlass();
    let kubectl = windlass.up();
    kubectl.apply(&shell_pod("printed", "Always", "echo here; sleep 3600"));
    eventually(DEFAULT_TIMEOUT, "the pod is Ready", || kubectl.ready_pods("test=printed", 1));
    let mut hostile = testbed.command_outside("python3");
    let hostile = Daemon::start("a hostile client", hostile.args(["-c", HOSTILE]), &testbed.dir().join("hostile.log"))
        .expect("python3");
    eventually(DEFAULT_TIMEOUT, "all connections are open", || {
        anyhow::ensure!(hostile.log().contains("held"), "{}", hostile.log());
        Ok(())
    });
    let admin = certificate(&testbed, "admin");
    for _ in 0..5 {
        assert_eq!(ask(&testbed, &admin, &format!("{NODE_API}/healthz")).0, "200");
        assert_eq!(kubectl.run(&["logs", "printed"]), "here\n");
    }
    let pid = windlass.daemon().pid();
    let open = fs::read_dir(format!("/proc/{pid}/fd")).expect("the process runs").count();
    assert!(open < 700, "{open} files are open");
}

/// A server's certificate as PEM.
fn served_certificate(testbed: &Testbed) -> String {
    testbed.sh("python3 -c 'import ssl; print(ssl.get_server_certificate((\"198.18.0.1\", 10250)))'")
}

#[test]
fn certificates_that_change_are_shown_without_a_new_start() {
    let testbed = Testbed::new();
    let windlass = testbed.windlass();
    let server = windlass.api_alone();
    let (pki, own) = (testbed.dir().join("data/pki"), testbed.dir().join("own"));
    fs::create_dir_all(&own).expect("a folder");
    let copy = |from: &str| {
        for end in ["key", "crt"] {
            fs::copy(pki.join(format!("{from}.{end}")), own.join(format!("tls.{end}"))).expect("a certificate");
        }
        fs::read_to_string(own.join("tls.crt")).expect("a certificate")
    };
    let first = copy("kubelet");
    fs::copy(pki.join("ca.crt"), own.join("ca.crt")).expect("an authority");
    let mut command = windlass.command("agent");
    command.arg("--kubeconfig").arg(pki.join("node.kubeconfig"));
    command.arg("--tls-cert-file").arg(own.join("tls.crt")).arg("--tls-private-key-file").arg(own.join("tls.key"));
    command.arg("--client-ca-file").arg(own.join("ca.crt"));
    command.args(["--run-dir", &testbed.dir().join("agent-run").to_string_lossy()]);
    command.args(["--data-dir", &testbed.dir().join("agent-data").to_string_lossy()]);
    let mut node = Daemon::start("windlass agent", &mut command, &testbed.dir().join("agent.log")).expect("the agent");
    let admin = certificate(&testbed, "admin");
    let healthz = format!("{NODE_API}/healthz");
    eventually(DEFAULT_TIMEOUT, "the node answers", || {
        anyhow::ensure!(node.runs(), "{}", node.log());
        testbed.try_sh(&format!("curl -fsSk --max-time 5 {admin} {healthz}"))
    });
    assert_eq!(served_certificate(&testbed).trim(), first.trim());
    // A certificate with another key is rejected; a matching pair is loaded.
    fs::write(own.join("tls.crt"), "nonsense").expect("a file");
    eventually(DEFAULT_TIMEOUT, "it is warned of", || {
        anyhow::ensure!(node.log().contains("changed certificates cannot be used"));
        Ok(())
    });
    assert_eq!(served_certificate(&testbed).trim(), first.trim());
    let second = copy("apiserver");
    eventually(DEFAULT_TIMEOUT, "the other certificate is shown", || {
        anyhow::ensure!(served_certificate(&testbed).trim() == second.trim());
        Ok(())
    });
    assert_eq!(ask(&testbed, &admin, &healthz).0, "200");
    // Another CA: clients of the first one are anonymous now.
    testbed.sh(&format!(
        "cd {} && openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout other.key -out ca.crt -subj /CN=other -days 2 2>&1",
        own.display()
    ));
    eventually(DEFAULT_TIMEOUT, "the old authority is not trusted", || {
        anyhow::ensure!(testbed.try_sh(&format!("curl -fsSk --max-time 5 {admin} {healthz}")).is_err());
        Ok(())
    });
    drop(server);
}
