//! The rules of ARCHITECTURE.md: which crate may import which, which module may touch which part of the world, and how
//! files are laid out.

mod circles;
mod crates;

use std::collections::BTreeSet;

use windlass_tests::sources::rust_sources;

/// Rust code without comments, strings and test modules, so that only what is compiled into the program counts.
fn code_of(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    text.lines().map(|line| line.split_once("//").map_or(line, |(code, _)| code)).collect::<Vec<_>>().join("\n")
}

fn is_test(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.contains("/tests/")
}

/// The sources of the shipped program, without its tests: path and code.
fn shipped() -> Vec<(String, String)> {
    let crates = crates::shipped_sources();
    let is_shipped = |path: &String| crates.iter().any(|dir| path.starts_with(dir.as_str())) && !is_test(path);
    let sources = rust_sources().into_iter().filter(|(path, _)| is_shipped(path));
    let sources: Vec<(String, String)> = sources.map(|(path, text)| (path, code_of(&text))).collect();
    assert!(sources.len() > 300, "only {} files were found", sources.len());
    sources
}

/// Fails if one of `words` is in shipped code outside of `allowed`, and if a path in `allowed` has none.
#[track_caller]
fn only_in(allowed: &[&str], words: &[&str]) {
    let sources = shipped();
    let has = |code: &str| words.iter().find(|word| code.contains(**word));
    for (path, code) in &sources {
        if let Some(word) = has(code) {
            assert!(allowed.iter().any(|dir| path.starts_with(dir)), "{path} has {word:?}; only {allowed:?} may");
        }
    }
    for dir in allowed {
        let used = sources.iter().any(|(path, code)| path.starts_with(dir) && has(code).is_some());
        assert!(used, "{dir} has none of {words:?}");
    }
}

/// Other modules may use bollard's models and credentials, but only the engine has a client.
#[test]
fn only_the_engine_module_calls_docker() {
    for (path, code) in shipped().iter().filter(|(path, _)| !path.starts_with("agent/src/engine/")) {
        for (at, _) in code.match_indices("bollard::") {
            let rest = &code[at + "bollard::".len()..];
            let is_data = rest.starts_with("models::") || rest.starts_with("auth::");
            assert!(is_data, "{path} uses more of bollard than models and auth: {:?}", rest.lines().next());
        }
    }
    only_in(&["agent/src/engine/"], &["Docker::connect_with"]);
}

/// Process ids are reused: code that opens a container's namespace must check its owner, in a single place.
#[test]
fn one_place_opens_network_namespaces() {
    only_in(&["agent/src/network/netns.rs"], &["/ns/net\"", "process.join(\"ns/net\")", "setns("]);
    only_in(&["agent/src/engine/"], &["is_in_container(", "ContainerProcess::new("]);
    only_in(&["agent/src/network/links.rs"], &["setns_by_fd("]);
    for (path, code) in shipped() {
        assert!(!code.contains("setns_by_pid("), "{path} moves an interface to a process's namespace by its id alone");
    }
}

/// Service rules go through `apply`; the pod network has chains of its own.
#[test]
fn only_apply_and_the_pod_network_run_iptables() {
    only_in(&["agent/src/network/iptables.rs", "proxy/src/apply/backend.rs"], &["\"-restore\"", "{}-restore"]);
    for (path, code) in shipped().iter().filter(|(path, _)| path.starts_with("proxy/src/")) {
        let runs = code.contains("Command::new(") || code.contains("process::Command");
        assert!(!runs || path.starts_with("proxy/src/apply/"), "{path} runs programs; only proxy/src/apply may");
    }
}

/// State records what was applied, never what was asked: only the writer can construct the proof of a write.
#[test]
fn only_writers_prove_that_something_is_applied() {
    let writers = ["agent/src/network/ipam.rs", "agent/src/network/iptables.rs"];
    only_in(&[&writers[..], &["agent/src/applied.rs"]].concat(), &["fn into_written("]);
}

/// Blocking work has a lane, by its kind: what hangs in one must not take the threads of the others. The samplers of usage
/// have threads for as long as the process lives.
#[test]
fn blocking_work_has_a_lane() {
    only_in(&["kit/src/blocking/mod.rs", "cadvisor/src/usage.rs"], &["spawn_blocking("]);
    only_in(&["kit/src/client/resolver.rs", "agent/src/pods/steps/prober/"], &[".to_socket_addrs("]);
    for (path, code) in shipped() {
        for word in ["tokio::net::lookup_host", "block_in_place(", "HttpConnector::new()"] {
            assert!(!code.contains(word), "{path} has {word:?}, which blocks threads that others need; use a lane");
        }
    }
}

/// kube's own credential handling runs programs and reads files on the caller's thread, without a limit.
#[test]
fn credentials_are_made_by_one_task() {
    only_in(&["kit/src/client/access.rs"], &["rustls_client_config("]);
    only_in(&["kit/src/client/exec_plugin.rs"], &["ExecInteractiveMode"]);
    for (path, code) in shipped() {
        for word in
            ["auth_layer(", "rustls_https_connector", "kube::Client::try_from", "Client::try_default", "ClientBuilder"]
        {
            assert!(!code.contains(word), "{path} has {word:?}; clients are made by windlass_kit::client::Access");
        }
        let runs = path.starts_with("kit/") && code.contains("process::Command");
        assert!(!runs || path == "kit/src/external_program.rs", "{path} runs programs; of the kit one module does");
    }
}

/// A signalled process of a unit with `Restart=` is restarted by systemd.
#[test]
fn only_the_service_module_ends_the_running_instance() {
    only_in(&["cli/src/service.rs"], &["\"systemctl\"", "fn terminate("]);
}

/// A key that is read in a second place works there in the forms alone that somebody thought of there.
#[test]
fn keys_are_read_by_one_module() {
    let words = ["KeyPair::from_pem", "KeyPair::from_pkcs8_pem", "PrivateKeyDer::from_pem", "PrivateKeyDer::pem_"];
    only_in(&["kit/src/private_key.rs"], &words);
}

/// Whatever makes a file where keys, tokens and objects are kept says its mode: left to the umask it is for everybody.
#[test]
fn files_beside_secrets_are_made_with_a_mode() {
    let kept = ["control/", "cli/src/", "kit/src/"];
    // Copies next to a log with the log's mode.
    let of_old = ["cli/src/logging/file.rs"];
    for (path, code) in shipped().iter().filter(|(path, _)| kept.iter().any(|dir| path.starts_with(dir))) {
        for word in ["File::create(", "File::create_new(", "fs::write(", "fs::copy("] {
            let allowed = !code.contains(word) || of_old.contains(&path.as_str());
            assert!(allowed, "{path} has {word:?}, which leaves the mode to the umask; use kit::atomic_file");
        }
        for (at, _) in code.match_indices(".create(true)") {
            let call = code[at..].split(".open(").next().unwrap_or_default();
            assert!(call.contains(".mode("), "{path} makes a file without a mode; use kit::atomic_file");
        }
    }
}

/// What writes, renames or removes files in another way than through `kit::disk`, and why it may: a cut of the power, a full
/// disk or a failing one costs nothing there that must last.
const OTHER_WAYS_TO_THE_DISK: [(&str, &str); 27] = [
    ("kit/src/disk/real.rs", "the machine's disk itself"),
    ("control/store/src/engine/log/directory.rs", "the log has a seam of its own, which tests map to the same model"),
    ("agent/src/cgroup/", "cgroups are the kernel's"),
    ("agent/src/cri/socket.rs", "a socket, which goes with the process"),
    ("agent/src/engine/docker_api_tests.rs", "a test"),
    ("agent/src/network/cni/namespace.rs", "a mount in /run, which goes with the machine's run"),
    ("agent/src/network/ipam.rs", "removes files that were written by kit::atomic_file"),
    ("agent/src/network/links.rs", "a setting of the kernel in /proc"),
    ("agent/src/network/veth.rs", "a setting of the kernel in /proc"),
    ("agent/src/pods/dispatcher/orphan_logs.rs", "removes logs and links to them"),
    (
        "agent/src/pods/steps/container_files.rs",
        "files that containers have mounted: in place, and written again at each start",
    ),
    ("agent/src/pods/steps/host_files.rs", "links to logs, and directories of pods that are gone"),
    ("agent/src/pods/steps/upstream_tests.rs", "a test"),
    ("agent/src/volumes/mount.rs", "a file of hostPath, which is the pod's"),
    ("agent/src/volumes/mounter/mod.rs", "says that a volume is set up: without it that is done again"),
    ("agent/src/volumes/subpath.rs", "a place to mount at"),
    ("cadvisor/src/source/kernel_log.rs", "reads /dev/kmsg"),
    ("cli/src/commands/bundle/mod.rs", "a report, which is made again"),
    ("cli/src/commands/proxy.rs", "a file that is asked for on the command line, maybe a pipe"),
    (
        "cli/src/commands/purge.rs",
        "removes the directory; the mark by which that is continued is written by kit::atomic_file",
    ),
    ("cli/src/commands/reload.rs", "the answer of a reload, in /run"),
    ("cli/src/commands/up.rs", "the log of a process"),
    ("cli/src/instance.rs", "locks and marks in /run"),
    ("cli/src/logging/file.rs", "the log of a process"),
    ("control/apiserver/src/plugin/audit/log_file.rs", "appends, and is replaced by a name"),
    ("proxy/src/cleanup/mod.rs", "removes a cache"),
    ("proxy/src/sysctls.rs", "settings of the kernel in /proc"),
];

/// Durable files are written through one interface, beneath which tests inject disk failures.
#[test]
fn what_must_last_has_one_way_to_the_disk() {
    let words = [
        "fs::write(",
        "fs::rename(",
        "File::create",
        "OpenOptions",
        "fs::copy(",
        "fs::hard_link(",
        "fs::remove_file",
        "fs::remove_dir_all",
        "unix::fs::symlink",
    ];
    only_in(&OTHER_WAYS_TO_THE_DISK.map(|(path, _)| path), &words);
}

/// `HeaderValue::to_str` refuses what is not ASCII, and a value that is then dropped is as good as not sent: a user who is
/// impersonated, a token, a group.
#[test]
fn header_values_are_read_by_one_module() {
    let knows_headers = |code: &str| ["HeaderMap", "HeaderValue", ".headers()"].iter().any(|word| code.contains(word));
    for (path, code) in shipped().iter().filter(|(_, code)| knows_headers(code)) {
        assert!(!code.contains(".to_str()"), "{path} reads a header by itself; windlass_kit::serve::headers does that");
    }
}

/// The modules below the crate's root that a file names: of `crate::a::b` and of each `a` in `use crate::{a::b, …}`.
fn root_modules(code: &str) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    let name_at = |text: &'_ str| text.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(text.len());
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        let Some(list) = rest.strip_prefix('{') else {
            found.insert(&rest[..name_at(rest)]);
            continue;
        };
        let (mut depth, mut starts) = (0, true);
        for (i, c) in list.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => starts = true,
                c if starts && !c.is_whitespace() => {
                    found.insert(&list[i..i + name_at(&list[i..])]);
                    starts = false;
                }
                _ => {}
            }
        }
    }
    found
}

/// Folders of one crate that must not import others, so that there are no circles: who, whom.
const FORBIDDEN_IMPORTS: [(&str, &[&str]); 5] = [
    ("agent/src/cri/", &["node", "server", "volumes"]),
    ("agent/src/volumes/", &["cri", "pods", "server"]),
    ("agent/src/engine/", &["cri", "pods", "volumes", "node", "server"]),
    ("agent/src/network/", &["cri", "pods", "volumes", "node", "server"]),
    ("agent/src/pods/", &["cri", "server"]),
];

#[test]
fn folders_import_one_way() {
    let grouped = root_modules("use crate::{\n    a::{b, c},\n    d,\n};\nfn f() { crate::e::g() }");
    assert_eq!(grouped, BTreeSet::from(["a", "d", "e"]));
    let sources = shipped();
    for (folder, forbidden) in FORBIDDEN_IMPORTS {
        let inside: Vec<_> = sources.iter().filter(|(path, _)| path.starts_with(folder)).collect();
        assert!(!inside.is_empty(), "{folder} does not exist");
        for (path, code) in inside {
            let found = root_modules(code).into_iter().find(|module| forbidden.contains(module));
            assert!(found.is_none(), "{path} imports crate::{found:?}");
        }
    }
}

/// The agent writes limits into cgroups; how much they use is read in one place.
#[test]
fn only_the_source_module_reads_usage_from_cgroups() {
    let files = [
        "\"memory.current\"",
        "\"memory.stat\"",
        "\"memory.usage_in_bytes\"",
        "\"memory.events\"",
        "\"memory.pressure\"",
        "\"cpu.stat\"",
        "\"cpu.pressure\"",
        "\"cpuacct.usage\"",
        "\"io.stat\"",
        "\"io.pressure\"",
        "\"pids.current\"",
    ];
    only_in(&["cadvisor/src/source/"], &files);
}

/// Kinds are named only where one kind is treated: not in the machinery that serves any type.
#[test]
fn the_api_server_knows_no_kind() {
    let kinds = [
        "ConfigMap",
        "CustomResourceDefinition",
        "EndpointSlice",
        "Endpoints",
        "Event",
        "Lease",
        "Namespace",
        "Node",
        "PersistentVolume",
        "PersistentVolumeClaim",
        "Pod",
        "ReplicationController",
        "RuntimeClass",
        "Secret",
        "Service",
        "ServiceAccount",
        "StorageClass",
    ];
    let mut files = 0;
    for (path, code) in shipped().iter().filter(|(path, _)| path.starts_with("control/apiserver/src/apiserver/")) {
        files += 1;
        for folder in ["crate::kinds", "crate::plugin", "crate::control_plane"] {
            assert!(!code.contains(folder), "{path} imports {folder}");
        }
        for kind in kinds {
            assert!(!code.contains(&format!("\"{kind}\"")), "{path} names the kind {kind:?}");
        }
    }
    assert!(files > 40, "only {files} files were found");
}

/// A module whose documentation says that it is pure does no I/O: time and data are passed to it.
#[test]
fn pure_modules_do_no_io() {
    let is_pure = |text: &str| {
        let header: Vec<&str> = text.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim).collect();
        let header = format!(" {}", header.join(" "));
        ["Pure.", "Pure:", "Pure;", "Pure, "]
            .iter()
            .any(|word| [" ", ". "].iter().any(|before| header.contains(&format!("{before}{word}"))))
    };
    let forbidden =
        ["std::fs", "std::process", "std::thread", "tokio::fs", "tokio::net", "tokio::process", "tokio::spawn"];
    let mut pure = 0;
    for (path, text) in rust_sources().iter().filter(|(path, text)| !is_test(path) && is_pure(text)) {
        pure += 1;
        let code = code_of(text);
        let found = forbidden.iter().find(|word| code.contains(**word));
        assert!(found.is_none(), "{path} is pure and uses {found:?}");
        // `use std::{fs, …};` over several lines.
        for block in code.split("use std::{").skip(1) {
            let names: Vec<&str> = block.split("};").next().unwrap_or_default().split(',').map(str::trim).collect();
            let found =
                names.iter().find(|name| ["fs", "process", "thread"].contains(&name.split("::").next().unwrap_or("")));
            assert!(found.is_none(), "{path} is pure and uses std::{found:?}");
        }
        // The type of a point in time is data.
        let tokio = code.replace("tokio::time::Instant", "");
        assert!(!tokio.contains("tokio::"), "{path} is pure and uses tokio");
    }
    assert!(pure > 80, "only {pure} pure modules were found");
}
