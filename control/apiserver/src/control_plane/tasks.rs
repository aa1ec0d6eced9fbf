//! What the control plane does on its own until it is shut down.

use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use windlass_kit::{serve, supervise::Supervisor};

use super::{ControlPlane, Error, metrics};
use crate::{apiserver::User, event_ttl, metrics::Scraper, store, validating_admission_policy_status};

impl ControlPlane {
    /// Starts to serve at `listeners`, and everything that is done without a request. Only the store's task can fail: a
    /// restart alone helps when its writer has ended.
    pub fn start(&self, listeners: Vec<TcpListener>, tasks: &mut Supervisor) {
        let token = tasks.token();
        tasks.spawn("store", self.clone().watch_store(token.clone()));
        let plane = self.clone();
        let stop = token.clone();
        tasks.forever("API server", async move { plane.serve(listeners, stop).await });
        tasks.forever("certificate renewal", self.clone().renew(token.clone()));
        tasks.forever("custom resources", self.clone().serve_custom_resources(token.clone()));
        tasks.forever("aggregator", self.clone().aggregate(token.clone()));
        tasks.forever("types of admission policies", self.clone().check_policy_types(token.clone()));
        tasks.forever("bootstrap objects", self.clone().keep_bootstrap_objects(token.clone()));
        tasks.forever("uses of tokens", self.clone().note_token_uses(token.clone()));
        if self.config.options.node_components {
            tasks.forever("usage of nodes", self.clone().scrape_nodes(token.clone()));
        }
        tasks.forever("event sweeper", self.clone().expire_events(token));
    }

    /// Serves the API over TLS until `shutdown`.
    pub async fn serve(&self, listeners: Vec<TcpListener>, shutdown: CancellationToken) {
        let streams = async {
            shutdown.cancelled().await;
            self.api.close();
        };
        let servers = listeners.into_iter().map(|listener| {
            let (tls, router, reserved) = (self.server_tls.clone(), self.router(), self.reserved.clone());
            serve::serve_tls("apiserver", listener, tls, router, reserved, shutdown.clone())
        });
        let counting = metrics::follow(&self.api, &self.store, &shutdown);
        tokio::join!(futures::future::join_all(servers), streams, counting);
    }

    /// Serves what CustomResourceDefinitions define until `shutdown`.
    pub async fn serve_custom_resources(self, shutdown: CancellationToken) {
        let client = self.client(User::api_server());
        self.custom_resources.run(client, shutdown).await;
    }

    /// Follows extension API servers until `shutdown`.
    pub async fn aggregate(self, shutdown: CancellationToken) {
        self.aggregator.run(self.client(User::api_server()), shutdown).await;
    }

    /// Compares expressions of admission policies with the types that they are about, until `shutdown`.
    pub async fn check_policy_types(self, shutdown: CancellationToken) {
        let client = self.client(User::api_server());
        validating_admission_policy_status::run(&self.api, client, shutdown).await;
    }

    /// Writes to the labels of service accounts' secrets when their tokens are used, until `shutdown`.
    pub(super) async fn note_token_uses(self, shutdown: CancellationToken) {
        let client = self.client(User::api_server());
        self.token_uses.write_labels(&client, &shutdown).await;
    }

    /// Reads the usage of all other nodes, for `metrics.k8s.io`, until `shutdown`.
    async fn scrape_nodes(self, shutdown: CancellationToken) {
        Scraper::new(self.store.clone(), self.kubelet.clone(), self.usage.clone()).run(shutdown).await;
    }

    /// Deletes expired events until `shutdown`.
    async fn expire_events(self, shutdown: CancellationToken) {
        let client = self.client(User::internal("system:event-sweeper"));
        event_ttl::sweep(&self.store, &client, &shutdown).await;
    }

    /// Ends only when the store's writer has.
    async fn watch_store(self, shutdown: CancellationToken) -> Result<(), Error> {
        tokio::select! {
            () = shutdown.cancelled() => Ok(()),
            () = self.store.ended() => Err(Error::Store(store::Error::Closed)),
        }
    }

    /// For how long in all nothing could be written.
    #[must_use]
    pub fn stalled(&self) -> Duration {
        self.store.stalled()
    }

    /// Flushes and closes the store, after all writers have ended.
    ///
    /// # Errors
    /// When the disk fails.
    pub async fn close(&self) -> Result<(), Error> {
        Ok(self.store.close().await?)
    }
}
