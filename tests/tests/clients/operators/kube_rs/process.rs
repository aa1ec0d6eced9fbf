//! The operator as if it were a process: a thread in the network namespace of the API server, with the webhooks and two instances of
//! the controller.

use std::{collections::BTreeMap, path::PathBuf, sync::mpsc, thread::JoinHandle};

use anyhow::Context as _;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::JoinHandle as Task,
};
use windlass_tests::Testbed;

use super::{USER, injector::inject, leader::lead, webhooks};
use crate::webhook_server::WebhookServer;

/// What it is asked to do.
enum Order {
    /// Write the authority of its webhooks to where it is wanted; the answer says how that ended.
    Inject(mpsc::Sender<anyhow::Result<()>>),
    /// Start an instance of this name.
    Start(&'static str),
    /// End it, without a word to anybody.
    Kill(String),
    End,
}

/// The running operator.
pub(super) struct Operator {
    orders: UnboundedSender<Order>,
    pub(super) webhooks: WebhookServer,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

impl Operator {
    /// Serves the webhooks; no instance runs yet.
    pub(super) fn start(testbed: &Testbed) -> Self {
        let (orders, ordered) = unbounded_channel();
        let (started, start) = mpsc::channel();
        let (namespace, kubeconfig) = (testbed.namespace(), testbed.windlass().kubeconfig());
        let thread = std::thread::spawn(move || {
            let namespace = std::fs::File::open(namespace)?;
            nix::sched::setns(namespace, nix::sched::CloneFlags::CLONE_NEWNET).context("the testbed's network")?;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let server = WebhookServer::start("127.0.0.1", &[]).await;
                server.decide(webhooks::decide);
                started.send(server.clone())?;
                serve(kubeconfig, &server, ordered).await
            })
        });
        let webhooks = start.recv().expect("the webhooks are served");
        Self { orders, webhooks, thread: Some(thread) }
    }

    fn order(&self, order: Order) {
        assert!(self.orders.send(order).is_ok(), "the operator has ended");
    }

    pub(super) fn inject(&self) {
        let (done, end) = mpsc::channel();
        self.order(Order::Inject(done));
        if let Err(error) = end.recv().expect("the operator runs") {
            panic!("the authority cannot be injected: {error:#}");
        }
    }

    pub(super) fn begin(&self, instance: &'static str) {
        self.order(Order::Start(instance));
    }

    pub(super) fn kill(&self, instance: &str) {
        self.order(Order::Kill(instance.to_owned()));
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.orders.send(Order::End);
        let ended = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            ended.expect("a thread").expect("its end").expect("the operator has no error");
        }
    }
}

async fn serve(
    kubeconfig: PathBuf,
    server: &WebhookServer,
    mut ordered: UnboundedReceiver<Order>,
) -> anyhow::Result<()> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    // It has the rights of its service account alone.
    config.auth_info.impersonate = Some(USER.to_owned());
    let client = Client::try_from(config)?;
    let mut instances: BTreeMap<String, Task<()>> = BTreeMap::new();
    while let Some(order) = ordered.recv().await {
        match order {
            Order::Inject(done) => done.send(inject(&client, &server.ca).await)?,
            Order::Start(name) => {
                instances.insert(name.to_owned(), tokio::spawn(lead(client.clone(), name)));
            }
            Order::Kill(name) => instances.remove(&name).context("an instance that runs")?.abort(),
            Order::End => break,
        }
    }
    Ok(())
}
