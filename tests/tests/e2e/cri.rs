//! The façade of CRI, as kruise-daemon and crictl use it. The numbers of fields are those of upstream's `api.proto`.

use std::{
    fs,
    io::Write as _,
    os::unix::{fs::PermissionsExt as _, net::UnixStream},
    path::{Path, PathBuf},
};

use serde_json::Value;
use windlass_tests::{
    DEFAULT_TIMEOUT, Testbed,
    cri::{CriClient, Fields, Message},
    eventually,
};

use crate::{
    container_id,
    shared_dir::{container_status, wait_for},
    shell_pod,
};

fn socket_of(testbed: &Testbed) -> PathBuf {
    testbed.dir().join("run/cri.sock")
}

fn containers(cri: &CriClient, uid: &str) -> Vec<Fields> {
    let filter = Message::default().entry(4, "io.kubernetes.pod.uid", uid);
    cri.ask("RuntimeService/ListContainers", &Message::default().message(1, &filter)).messages(1)
}

fn uid(pod: &Value) -> &str {
    pod["metadata"]["uid"].as_str().unwrap_or_default()
}

fn exec(cri: &CriClient, id: &str, line: &str, seconds: u64) -> anyhow::Result<Fields> {
    let command = ["sh", "-c", line].iter().fold(Message::default().text(1, id), |all, word| all.text(2, word));
    cri.call("RuntimeService/ExecSync", &command.number(3, seconds))
}

/// What kruise-daemon does: it recreates a container, probes, and pulls images.
#[test]
fn the_calls_of_kruise_daemon() {
    let testbed = Testbed::with_registry();
    let socket = socket_of(&testbed);
    let mut windlass = testbed.windlass().with(&["--cri-socket", &socket.to_string_lossy()]);
    let kubectl = windlass.up();
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let cri = CriClient::connect(&socket).unwrap();
    let version = cri.ask("RuntimeService/Version", &Message::default());
    assert_eq!(version.text(2), "docker");
    kubectl.apply(&shell_pod("web", "Always", "echo begun; exec sleep 100000"));
    let before = wait_for(&kubectl, "web", "runs", |p| container_status(p)["ready"] == true);

    let listed = containers(&cri, uid(&before));
    assert_eq!(listed.len(), 1);
    let (id, sandbox) = (listed[0].text(1), listed[0].text(2));
    assert_eq!((&id, listed[0].number(6)), (&container_id(&before), 1), "it runs");
    assert_eq!(listed[0].message(4).text(1), "windlass/busybox:1");
    assert_eq!(listed[0].entry(8, "io.kubernetes.container.name"), "main");
    assert_eq!(listed[0].entry(9, "io.kubernetes.container.restartCount"), "0");
    assert_eq!(listed[0].entry(9, "io.kubernetes.pod.terminationGracePeriod"), "1");
    let status = cri.ask("RuntimeService/ContainerStatus", &Message::default().text(1, &id)).message(1);
    let log = status.text(15);
    assert!(fs::read_to_string(&log).unwrap().contains("begun"), "{log}");

    let ended = exec(&cri, &id, "echo out; echo err >&2; exit 7", 0).unwrap();
    assert_eq!((ended.text(1).as_str(), ended.text(2).as_str(), ended.number(3)), ("out\n", "err\n", 7));
    let late = exec(&cri, &id, "sleep 1000", 1).unwrap_err().to_string();
    assert!(late.starts_with("4: "), "{late}");
    eventually(DEFAULT_TIMEOUT, "the command is killed", || {
        let processes = testbed.docker(&["top", &id]);
        anyhow::ensure!(!processes.contains("sleep 1000\n"), "{processes}");
        Ok(())
    });

    let _ = cri.ask("RuntimeService/StopContainer", &Message::default().text(1, &id).number(2, 1));
    let status = cri.ask("RuntimeService/ContainerStatus", &Message::default().text(1, &id)).message(1);
    assert_eq!(status.number(3), 2, "it has exited");
    let after = wait_for(&kubectl, "web", "runs again", |p| {
        container_status(p)["restartCount"] == 1 && container_status(p)["ready"] == true
    });
    assert_eq!((uid(&before), &before["status"]["podIP"]), (uid(&after), &after["status"]["podIP"]));
    let listed = containers(&cri, uid(&after));
    let next = listed.iter().find(|container| container.text(1) == container_id(&after)).expect("it is listed");
    assert_eq!((next.text(2), next.entry(9, "io.kubernetes.container.restartCount").as_str()), (sandbox.clone(), "1"));
    let sandboxes = cri.ask("RuntimeService/ListPodSandbox", &Message::default()).messages(1);
    assert!(sandboxes.iter().any(|one| one.text(1) == sandbox && one.number(3) == 0), "the same sandbox is ready");

    pull(&testbed, &cri);
    gone_and_back(&socket);
    let cri = CriClient::connect(&socket).unwrap();
    let refused = cri.call("RuntimeService/RunPodSandbox", &Message::default()).unwrap_err().to_string();
    assert!(refused.starts_with("12: "), "{refused}");
    windlass.down(&[]);
    assert!(!socket.exists());
}

/// An image that only the registry has is pulled, and listed.
fn pull(testbed: &Testbed, cri: &CriClient) {
    let name = "127.0.0.1:5000/windlass/pulled:1";
    let _ = testbed.docker(&["tag", "windlass/busybox:1", name]);
    let _ = testbed.docker(&["push", "-q", name]);
    let _ = testbed.docker(&["rmi", name]);
    let image = Message::default().text(1, name);
    let status = || cri.ask("ImageService/ImageStatus", &Message::default().message(1, &image)).message(1);
    assert_eq!(status().text(2), "", "it is not there yet");
    let pulled = cri.ask("ImageService/PullImage", &Message::default().message(1, &image));
    assert!(pulled.text(1).starts_with("127.0.0.1:5000/windlass/pulled@sha256:"), "{pulled:?}");
    assert!(status().text(1).starts_with("sha256:"));
    let listed = cri.ask("ImageService/ListImages", &Message::default()).messages(1);
    assert!(listed.iter().any(|one| one.text(3) == pulled.text(1)), "{listed:?}");
    let none = Message::default().text(1, "127.0.0.1:5000/windlass/none:1");
    assert!(cri.call("ImageService/PullImage", &Message::default().message(1, &none)).is_err());
}

/// Connections that hang, more than there may be, and a socket whose file is removed.
fn gone_and_back(socket: &Path) {
    let hanging: Vec<UnixStream> = (0..100)
        .map(|_| {
            let mut stream = UnixStream::connect(socket).expect("a connection");
            let _ = stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x04\x04");
            stream
        })
        .collect();
    let version = |cri: &CriClient| cri.ask("RuntimeService/Version", &Message::default()).text(2);
    let other = CriClient::connect(socket).expect("a connection");
    assert_eq!(version(&other), "docker");
    drop(hanging);
    fs::remove_file(socket).expect("the socket");
    let again = eventually(DEFAULT_TIMEOUT, "the socket is there again", || CriClient::connect(socket));
    assert_eq!(version(&again), "docker");
    assert_eq!(version(&other), "docker", "connections stay");
}
