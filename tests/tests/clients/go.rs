//! The official Go client, as operators built on client-go and controller-runtime use it: a program that stands outside of
//! this tree, since it is built of client-go, and that the variable [`GO_CLIENT`] names. Without it these tests are ignored.
//!
//! What the program takes: `PROGRAM -content-type TYPE -namespace NAME OBJECTS`, with `KUBECONFIG`. It reads objects from
//! the JSON file, decodes each into client-go's type of it, and does what typed clients do, in that content type: create,
//! get, list, watch, update, patches of all four types, apply, `status`, `scale`, metadata only, delete with preconditions,
//! deletecollection. Its last line is `N types`, the one before names what client-go has no type of.
//!
//! With `-stateless -record FILE` it sends nothing that it was given by the server (uid, resourceVersion) and writes each
//! request with the answer's code as a line of JSON. [`record`] makes the file of such requests that the API server's unit
//! tests replay:
//! `GO_CLIENT=… KUBEBUILDER_ASSETS=… UPDATE_RECORDED=1 cargo test -p windlass-tests --test clients -- go::record`.

use std::{
    ffi::OsString,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;
use windlass_tests::{Testbed, cluster::assets};

use crate::server::{Server, read_objects};

/// Names the program.
pub(crate) const GO_CLIENT: &str = "GO_CLIENT";
/// The content types, by the name of the test and of its namespace.
pub(crate) const CONTENT_TYPES: [(&str, &str); 2] =
    [("go-protobuf", "application/vnd.kubernetes.protobuf"), ("go-json", "application/json")];
/// What is served here and that client-go does not know: our own custom resource, and a version that has left upstream.
const WITHOUT_GO_TYPE: &str =
    "without a Go type: autoscaling/v2beta1 HorizontalPodAutoscaler, clients.example.com/v1 Sample";

/// The program, if there is one.
pub(crate) fn program() -> Option<PathBuf> {
    let program = PathBuf::from(std::env::var_os(GO_CLIENT).filter(|name| !name.is_empty())?);
    assert!(program.is_file(), "{} is missing, and {GO_CLIENT} names it", program.display());
    Some(program)
}

/// The program with what every call has, and the file of its objects, which comes after all flags.
fn command(testbed: &Testbed, kubeconfig: &Path, namespace: &str, objects: &[Value]) -> (Command, PathBuf) {
    let file = testbed.dir().join(format!("{namespace}.json"));
    fs::write(&file, serde_json::to_vec(objects).expect("objects are JSON")).expect("a file can be written");
    let program = program().expect("the test is ignored without it");
    let mut command = testbed.command(program.to_str().expect("a path in UTF-8"));
    command.env("KUBECONFIG", kubeconfig).args(["-namespace", namespace]);
    (command, file)
}

/// Runs it with the last flags and the file; returns what it printed.
fn run(mut command: Command, flags: &[OsString], objects: PathBuf) -> String {
    let output = command.args(flags).arg(objects).output().expect("the Go client starts");
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{told}{}", String::from_utf8_lossy(&output.stderr));
    told
}

pub(crate) fn every_type(server: &Server, namespace: &str, content_type: &str) {
    let objects = server.objects(namespace);
    let kubeconfig = server.testbed.windlass().kubeconfig();
    let (command, file) = command(&server.testbed, &kubeconfig, namespace, &objects);
    let told = run(command, &["-content-type".into(), content_type.into()], file);
    let last: Vec<&str> = told.lines().rev().take(2).collect();
    let types = format!("{} types", objects.len() - 2);
    assert_eq!(last, [types.as_str(), WITHOUT_GO_TYPE], "{told}");
}

/// Writes the requests of a Go client in protobuf, with the codes of a real API server that no controller follows.
pub(crate) fn record() {
    let testbed = Testbed::without_docker();
    let plane = testbed.api_server();
    let requests = testbed.dir().join("requests.jsonl");
    let (command, file) = command(&testbed, &plane.admin(), "go-client", &read_objects("go-client", 9));
    run(command, &["-stateless".into(), "-record".into(), requests.clone().into()], file);
    let text = fs::read_to_string(requests).expect("the requests were written");
    fs::write(Path::new(env!("CARGO_MANIFEST_DIR")).join(RECORDED), rows(&text)).expect("the recording can be written");
}

/// Whether a new recording is asked for, and can be made.
pub(crate) fn is_recording() -> bool {
    std::env::var_os("UPDATE_RECORDED").is_some() && program().is_some() && assets().is_some()
}

const RECORDED: &str = "../control/apiserver/src/apiserver/tests/go_client.tsv";

fn rows(requests: &str) -> String {
    let mut rows = String::from(
        "# Requests of client-go 1.36 in protobuf, and the codes of kube-apiserver 1.36: method, path, content type, accept, code, body in base64. Made by tests/tests/clients/go.rs.\n",
    );
    for line in requests.lines() {
        let request: Value = serde_json::from_str(line).expect("a line is JSON");
        let text = |name: &str| request[name].as_str().expect("a text");
        // A watch ends when its client has seen enough, which no replay can know. What the server chose comes back in the
        // update of some: the selector of a Job, a pod's volume of tokens, the address of a Service.
        let is_of_chosen = |plural: &&str| text("Path").ends_with(&format!("/{plural}/sample"));
        let has_chosen = text("Method") == "PUT" && ["jobs", "pods", "services"].iter().any(is_of_chosen);
        if text("Path").contains("watch=true") || has_chosen {
            continue;
        }
        let fields = [text("Method"), text("Path"), text("ContentType"), text("Accept")].join("\t");
        writeln!(rows, "{fields}\t{}\t{}", request["Code"], text("Body")).expect("a string takes any text");
    }
    rows
}
