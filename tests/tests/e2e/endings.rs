//! How containers end and what is told of it: messages, counts that go on, deadlines; and images that need a secret.

use std::fs;

use base64::Engine as _;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use windlass_tests::{Daemon, PATIENCE, World, eventually};

use crate::sharing::{Shared, is_ready, main_of, says, shell, wait_for};

#[test]
fn termination_messages() {
    let world = World::new();
    let mut windlass = world.windlass();
    let kubectl = windlass.up();
    let shared = Shared::new(&world);
    let ended = |p: &Value| main_of(p)["state"]["terminated"].clone();
    for (name, container, message) in [
        ("written", json!({"command": shell("printf done > /dev/termination-log; exit 1")}), json!("done")),
        (
            "elsewhere",
            json!({"command": shell("printf mine > /tmp/own"), "terminationMessagePath": "/tmp/own",
                "securityContext": {"runAsUser": 1000}}),
            json!("mine"),
        ),
        (
            "printed",
            json!({"command": shell("echo last words; exit 3"), "terminationMessagePolicy": "FallbackToLogsOnError"}),
            json!("last words\n"),
        ),
        (
            "well",
            json!({"command": shell("echo words"), "terminationMessagePolicy": "FallbackToLogsOnError"}),
            Value::Null,
        ),
        ("long", json!({"command": shell("yes x | head -c 9000 > /dev/termination-log")}), json!("x\n".repeat(2048))),
    ] {
        let mut main = container;
        main["name"] = json!("main");
        kubectl.apply(&shared.pod(name, json!({"restartPolicy": "Never", "containers": [main]})));
        let pod = wait_for(&kubectl, name, "has ended", |p| ended(p).is_object());
        assert_eq!(ended(&pod)["message"], message, "{name}");
    }
    // What a new process finds it tells in the same words.
    windlass.kill();
    let kubectl = windlass.up();
    let pod = kubectl.json(&["pod", "printed"]).unwrap();
    assert_eq!(ended(&pod)["message"], "last words\n");
}

#[test]
fn restart_counts_go_on() {
    let world = World::new();
    let mut windlass = world.windlass();
    let kubectl = windlass.up();
    let shared = Shared::new(&world);
    kubectl.apply(&shared.pod("p", json!({"containers": [{"name": "main", "command": shell("exec sleep 1000")}]})));
    wait_for(&kubectl, "p", "is ready", is_ready);
    let kill = |what: &[&str]| {
        let id = world.docker(&["ps", "-q", "--filter", "label=io.kubernetes.container.name=main"]);
        let mut args = what.to_vec();
        args.push(id.trim());
        let _ = world.docker(&args);
    };
    kill(&["kill"]);
    wait_for(&kubectl, "p", "was restarted", |p| main_of(p)["restartCount"] == 1 && is_ready(p));
    // Every trace of it in Docker goes while nobody looks: the count goes on.
    windlass.kill();
    let all = world.docker(&["ps", "-aq", "--filter", "label=io.kubernetes.container.name=main"]);
    let ids: Vec<&str> = all.lines().collect();
    let _ = world.docker(&[&["rm", "-f"], ids.as_slice()].concat());
    let kubectl = windlass.up();
    let pod = wait_for(&kubectl, "p", "runs again", |p| is_ready(p) && main_of(p)["restartCount"] != 1);
    assert_eq!(main_of(&pod)["restartCount"], 2);
}

#[test]
fn active_deadline_seconds() {
    let world = World::new();
    let mut windlass = world.windlass();
    let kubectl = windlass.up();
    let shared = Shared::new(&world);
    let spec =
        json!({"activeDeadlineSeconds": 2, "containers": [{"name": "main", "command": shell("exec sleep 1000")}]});
    kubectl.apply(&shared.pod("p", spec));
    let pod = wait_for(&kubectl, "p", "is over", |p| p["status"]["phase"] == "Failed");
    assert_eq!(pod["status"]["reason"], "DeadlineExceeded");
    assert_eq!(main_of(&pod)["state"]["terminated"]["exitCode"], 137, "{pod}");
}

#[test]
fn image_pull_secrets() {
    let world = World::with_registry();
    let mut windlass = world.windlass();
    let kubectl = windlass.up();
    let shared = Shared::new(&world);
    let dir = world.dir();
    // A registry of its own that asks who comes.
    let hash = world
        .sh("python3 -W ignore -c 'import crypt; print(crypt.crypt(\"secret\", crypt.mksalt(crypt.METHOD_BLOWFISH)))'");
    fs::write(dir.join("htpasswd"), format!("me:{}\n", hash.trim())).unwrap();
    let config = format!(
        "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {0}/private}}}}\n\
         http: {{addr: '127.0.0.1:5001'}}\nauth: {{htpasswd: {{realm: here, path: {0}/htpasswd}}}}\n",
        dir.display()
    );
    fs::write(dir.join("private.yml"), config).unwrap();
    let mut command = world.command("docker-registry");
    command.arg("serve").arg(dir.join("private.yml"));
    let mut registry = Daemon::start("docker-registry", &mut command, &dir.join("private.log")).unwrap();
    eventually(PATIENCE, "the registry asks who comes", || {
        let code = world.try_sh("curl -s -o /dev/null -w '%{http_code}' --max-time 2 http://127.0.0.1:5001/v2/")?;
        anyhow::ensure!(code.trim() == "401", "{code}");
        Ok(())
    });
    let image = "127.0.0.1:5001/private/busybox:1";
    let docker_config = dir.join("docker-config");
    fs::create_dir_all(&docker_config).unwrap();
    let auth = base64::engine::general_purpose::STANDARD.encode("me:secret");
    let auths = json!({"auths": {"127.0.0.1:5001": {"auth": auth}}}).to_string();
    fs::write(docker_config.join("config.json"), &auths).unwrap();
    let _ = world.docker(&["tag", "windlass/busybox:1", image]);
    let _ = world.docker(&["--config", &docker_config.to_string_lossy(), "push", "-q", image]);
    let _ = world.docker(&["rmi", image]);

    let pod = |name: &str, secret: Option<&str>| {
        let mut pod: Value = serde_json::from_str(&shared.pod(
            name,
            json!({
            "imagePullSecrets": secret.map(|s| json!([{"name": s}])),
            "containers": [{"name": "main", "command": shell("exec sleep 1000")}]}),
        ))
        .unwrap();
        pod["spec"]["containers"][0]["image"] = json!(image);
        pod["spec"]["containers"][0]["imagePullPolicy"] = json!("Always");
        pod.to_string()
    };
    kubectl.apply(&pod("nobody", None));
    says(&kubectl, "nobody", "Failed to pull image");
    kubectl.apply(&pod("lost", Some("not-there")));
    says(&kubectl, "lost", "Unable to retrieve some image pull secrets (not-there)");
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "mine"},
        "type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": auths}});
    kubectl.apply(&secret.to_string());
    kubectl.apply(&pod("known", Some("mine")));
    wait_for(&kubectl, "known", "is ready", is_ready);
    let log = fs::read_to_string(dir.join("windlass.log")).unwrap();
    assert!(!log.contains("secret\"") && !log.contains(&auth), "no credentials in the log");
    registry.end(Signal::SIGTERM);
}
