//! Holds what requests are answered from, and answers them: at once from records and cache, later by others' answers.

use std::{
    collections::BTreeSet,
    convert::Infallible,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use hickory_proto::{
    op::{Query, ResponseCode},
    rr::Record,
};
use jiff::Timestamp;
use parking_lot::{Mutex, RwLock, RwLockWriteGuard};
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;
use windlass_kit::{liveness::LoopProbe, net};

use super::{
    answer::Answer,
    forward::Forwarder,
    lookup::{Found, Zone, lookup},
    message::{self, Read, Request, Transport},
    metrics::Metrics,
    places::Places,
    records::Records,
    sources::Sources,
    watch::Change,
};

/// Requests that wait for other servers, or for the records after a start: `max_concurrent` of kubeadm's Corefile. One
/// server answers all nodes, so that they are shared among the sources.
const MAX_WAITING: usize = 1000;
/// How long a request waits for the first records: clients wait for five seconds.
const RECORDS_TIMEOUT: Duration = Duration::from_secs(4);

/// Answers requests.
#[derive(Debug)]
pub(super) struct Responder {
    zone: Zone,
    records: RwLock<Records>,
    has_records: watch::Sender<bool>,
    sources: Mutex<Sources>,
    forwarder: Forwarder,
    waiting: Arc<Places>,
    metrics: Arc<Metrics>,
}

/// What becomes of a packet.
#[derive(Debug)]
pub(super) enum Step {
    Nothing,
    Reply(Vec<u8>),
    /// [`Responder::finish`] has to wait.
    Wait(Box<Waiting>),
}

/// A request that waits.
#[derive(Debug)]
pub(super) struct Waiting {
    request: Request,
    from: SocketAddr,
    since: Instant,
}

/// What is known without waiting.
enum Known {
    Answer(Answer),
    /// Others know the answer to a question, to which these aliases led.
    Ask(Vec<Record>, Query),
}

impl Responder {
    pub(super) fn new(zone: Zone, sources: Sources, forwarder: Forwarder, metrics: Arc<Metrics>) -> Self {
        Self {
            zone,
            records: RwLock::default(),
            has_records: watch::Sender::new(false),
            sources: Mutex::new(sources),
            forwarder,
            waiting: Places::new(MAX_WAITING),
            metrics,
        }
    }

    /// Finds out what is known of other servers, until `shutdown`.
    pub(super) async fn monitor(&self, probe: &LoopProbe, shutdown: &CancellationToken) -> Result<(), Infallible> {
        self.forwarder.monitor(probe, shutdown).await
    }

    /// Whether the first lists of all objects are complete.
    pub(super) fn has_records(&self) -> watch::Receiver<bool> {
        self.has_records.subscribe()
    }

    /// The number of other servers' answers that are kept.
    pub(super) fn cached(&self) -> usize {
        self.forwarder.cached()
    }

    fn records(&self) -> RwLockWriteGuard<'_, Records> {
        self.records.write()
    }

    /// Applies a change of an object.
    pub(super) fn apply(&self, change: Change) {
        match change {
            Change::Node(event) => self.sources.lock().node(*event),
            Change::Namespace(event) => self.records().namespace(*event),
            Change::Service(event) => self.records().service_event(*event),
            Change::Slice(event) => {
                let changed_at = self.records().slice_event(*event);
                if let Some(at) = changed_at {
                    self.metrics.programmed(Timestamp::now().duration_since(at).as_secs_f64().max(0.0));
                }
            }
        }
        let complete = self.records().complete();
        self.has_records.send_if_modified(|known| std::mem::replace(known, complete) != complete);
    }

    /// Takes what was applied for all there is.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn skip_lists(&self) {
        self.has_records.send_replace(true);
    }

    /// Whether a source is answered.
    pub(super) fn allows(&self, from: SocketAddr, transport: Transport) -> bool {
        let mut sources = self.sources.lock();
        if from.port() == 0 {
            return false;
        }
        if sources.allows(from.ip()) {
            return true;
        }
        if sources.wants_machine(Instant::now()) {
            sources.set_machine(machine_addresses());
        }
        let allowed = sources.allows(from.ip());
        if !allowed {
            self.metrics.refused_source(transport);
        }
        allowed
    }

    /// Answers a packet, or says that it has to wait.
    pub(super) fn respond(&self, packet: &[u8], transport: Transport, from: SocketAddr) -> Step {
        let request = match message::read(packet, transport) {
            Read::Nothing => return Step::Nothing,
            Read::Reply(reply, code) => {
                self.metrics.response(".", code);
                return Step::Reply(reply);
            }
            Read::Request(request) => *request,
        };
        let waiting = Waiting { request, from, since: Instant::now() };
        let name = &waiting.request.question.name;
        if !*self.has_records.borrow() && self.zone.needs_records(name) {
            return Step::Wait(Box::new(waiting));
        }
        match self.known(&waiting.request) {
            Known::Answer(answer) => Step::Reply(self.write(&waiting, &answer)),
            Known::Ask(aliases, question) => match self.forwarder.kept(&waiting.request, &question) {
                Some(answer) => {
                    self.metrics.cached(true, answer.is_negative());
                    Step::Reply(self.write(&waiting, &merged(answer, aliases)))
                }
                None => Step::Wait(Box::new(waiting)),
            },
        }
    }

    /// Answers a request that has to wait; with too many of them it is refused.
    pub(super) async fn finish(&self, waiting: &Waiting) -> Vec<u8> {
        let Some(_place) = self.waiting.enter(waiting.from.ip()) else {
            self.metrics.rejected();
            return self.write(waiting, &Answer::of_code(ResponseCode::Refused));
        };
        let request = &waiting.request;
        if !*self.has_records.borrow() && self.zone.needs_records(&request.question.name) {
            let mut has_records = self.has_records.subscribe();
            // The sender lives as long as this.
            let complete = timeout(RECORDS_TIMEOUT, has_records.wait_for(|complete| *complete)).await;
            if complete.is_err() {
                return self.write(waiting, &Answer::of_code(ResponseCode::ServFail));
            }
        }
        let answer = match self.known(request) {
            Known::Answer(answer) => answer,
            Known::Ask(aliases, question) => {
                self.metrics.cached(false, false);
                merged(self.forwarder.ask(request, &question).await, aliases)
            }
        };
        self.write(waiting, &answer)
    }

    fn known(&self, request: &Request) -> Known {
        let records = self.records.read();
        match lookup(&self.zone, &records, &request.question, request.turn()) {
            Found::Answer(answer) => Known::Answer(answer),
            Found::Foreign if self.forwarder.came_back(&request.question) => {
                Known::Answer(Answer::of_code(ResponseCode::Refused))
            }
            Found::Foreign => Known::Ask(Vec::new(), request.question.clone()),
            Found::Alias(aliases, target) => {
                let mut question = request.question.clone();
                question.name = target;
                Known::Ask(aliases, question)
            }
        }
    }

    fn write(&self, waiting: &Waiting, answer: &Answer) -> Vec<u8> {
        let Waiting { request, from, since } = waiting;
        let zone = self.zone.label_of(&request.question.name);
        let kind = request.question.query_type;
        self.metrics.request(&zone, request.transport(), *from, kind, answer.code, since.elapsed());
        message::write(request, answer)
    }
}

/// Puts the cluster's aliases in front of an answer.
fn merged(answer: Answer, aliases: Vec<Record>) -> Answer {
    if aliases.is_empty() { answer } else { answer.after(aliases) }
}

/// The addresses of this machine's interfaces; none if they cannot be read.
fn machine_addresses() -> BTreeSet<IpAddr> {
    let addresses = net::interface_addresses().unwrap_or_else(|error| {
        tracing::warn!(%error, "failed to read the addresses of this machine; its own requests to the cluster's DNS may not be answered");
        Vec::new()
    });
    addresses.into_iter().collect()
}
