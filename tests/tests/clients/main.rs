//! Real clients of the API: kubectl (the oldest and the newest of the package index), the Python clients `kubernetes`,
//! `kr8s` and `lightkube`, kube-rs, and client-go if a program of it is given. Each creates, watches, patches, runs
//! into conflicts and deletes on every type in discovery, with the same objects (`tests/clients/objects.yaml`). All
//! share one running server without a node. Operators on kube-rs and kopf have one each, since it is killed.
//!
//! Run like any other test: `cargo test --workspace --test clients -- FILTER`.

mod go;
mod kube_rs;
mod kubectl;
mod operators;
mod python;
mod server;
#[allow(dead_code, reason = "each test program needs some of it")]
#[path = "../../../control/apiserver/tests/webhook_server/mod.rs"]
mod webhook_server;

use std::{
    process::ExitCode,
    sync::{Arc, LazyLock},
};

use libtest_mimic::{Arguments, Trial};
use windlass_tests::skip;

use server::Server;

type Start = fn() -> Server;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    // Started by the first test that runs: `--list`, or a filter without matches, needs none.
    let server: Arc<LazyLock<Server, Start>> = Arc::new(LazyLock::new(Server::start as Start));
    let of = |name: String, test: Box<dyn FnOnce(&Server) + Send>| {
        let server = Arc::clone(&server);
        Trial::test(name, move || {
            test(&server);
            Ok(())
        })
    };
    if go::program().is_none() && !arguments.list {
        skip("go-client", &format!("{} is not set", go::GO_CLIENT));
    }
    let mut trials = vec![of("every_served_type_has_an_object".to_owned(), Box::new(Server::check_objects))];
    for version in include_str!("../../clients/kubectl-versions.txt").lines() {
        trials.push(of(format!("kubectl::{version}"), Box::new(|server| kubectl::every_type(server, version))));
    }
    for client in python::CLIENTS {
        trials.push(of(format!("python::{client}"), Box::new(|server| python::every_type(server, client))));
    }
    for (name, test) in kube_rs::TESTS {
        trials.push(of(format!("kube_rs::{name}"), Box::new(test)));
    }
    for (name, content_type) in go::CONTENT_TYPES {
        let test = of(format!("go::{name}"), Box::new(move |server| go::every_type(server, name, content_type)));
        trials.push(test.with_ignored_flag(go::program().is_none()));
    }
    for (name, test) in operators::TESTS {
        trials.push(Trial::test(format!("operators::{name}"), move || {
            test();
            Ok(())
        }));
    }
    if go::is_recording() {
        trials.push(Trial::test("go::record", || {
            go::record();
            Ok(())
        }));
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    // The last reference ends the server, also after failures.
    drop(server);
    conclusion.exit_code()
}
