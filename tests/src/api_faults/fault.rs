//! The ways in which requests and watches fail, and which of them can fail in which way. Pure.

/// How one request fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestFault {
    /// No connection: nothing was sent.
    NotConnected,
    /// 500, and nothing is done.
    InternalError,
    /// 503, and nothing is done.
    Unavailable,
    /// 429 with a time to wait, and nothing is done.
    TooManyRequests,
    /// 410: the requested resourceVersion or continue token has expired.
    Expired,
    /// 504: the server is behind the version that is asked for, as a second one may be.
    TooLargeVersion,
    /// Somebody else writes the object a moment before.
    ComesSecond,
    /// It is done, and the connection ends before the answer.
    AnswerLost,
    /// It is done, and the answer is that it took too long.
    TimedOut,
    /// It is done, and the connection ends within the answer.
    BodyCut,
    /// Those who ask end before it, all of them, and others start in their place.
    EndsBefore,
    /// The request is carried out, and the client ends before the response.
    EndsAfter,
}

/// How a watch fails at one event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventFault {
    /// It ends before the event, as it does after its time.
    Ends,
    /// The connection breaks within the event.
    BreaksOff,
    /// It ends within the event.
    EndsWithin,
    /// In its place comes the error that the history is gone.
    Expired,
    /// In its place comes an error of the server.
    Error,
    /// It and what follows come late, as from a server that lags behind the one that is written to.
    Lags,
}

/// What fails: a request or an event by its number, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    Request(usize, RequestFault),
    Event(usize, EventFault),
}

/// What a request is for. What can become of it depends on that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    Get,
    List,
    Watch,
    Create,
    /// Updates, patches and deletions of one object.
    Write,
}

impl Purpose {
    /// The ways in which such a request can fail: who only reads has nothing to be faster than, and what is new cannot be
    /// written by others before.
    #[must_use]
    pub fn faults(self) -> &'static [RequestFault] {
        use RequestFault::{
            AnswerLost, BodyCut, ComesSecond, EndsAfter, EndsBefore, Expired, InternalError, NotConnected, TimedOut,
            TooLargeVersion, TooManyRequests, Unavailable,
        };
        match self {
            Self::Get => &[NotConnected, InternalError, Unavailable, TooManyRequests, BodyCut, EndsBefore],
            Self::List => &[
                NotConnected,
                InternalError,
                Unavailable,
                TooManyRequests,
                Expired,
                TooLargeVersion,
                BodyCut,
                EndsBefore,
            ],
            Self::Watch => {
                &[NotConnected, InternalError, Unavailable, TooManyRequests, Expired, TooLargeVersion, EndsBefore]
            }
            Self::Create => &[
                NotConnected,
                InternalError,
                Unavailable,
                TooManyRequests,
                AnswerLost,
                TimedOut,
                BodyCut,
                EndsBefore,
                EndsAfter,
            ],
            Self::Write => &[
                NotConnected,
                InternalError,
                Unavailable,
                TooManyRequests,
                ComesSecond,
                AnswerLost,
                TimedOut,
                BodyCut,
                EndsBefore,
                EndsAfter,
            ],
        }
    }
}

impl EventFault {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Ends, Self::BreaksOff, Self::EndsWithin, Self::Expired, Self::Error, Self::Lags];
}

/// What was asked for since [`Faults::arm`](super::Faults::arm).
#[derive(Debug, Clone, Default)]
pub struct Calls {
    /// What the requests were for.
    pub made: Vec<Purpose>,
    /// How many events watches had.
    pub events: usize,
    /// What has failed.
    pub hit: Option<String>,
}

impl Calls {
    /// All that could have failed, and in which ways.
    #[must_use]
    pub fn pairs(&self) -> Vec<Fault> {
        let requests = self.made.iter().enumerate();
        let requests = requests.flat_map(|(at, of)| of.faults().iter().map(move |fault| Fault::Request(at, *fault)));
        let events = (0..self.events).flat_map(|at| EventFault::ALL.map(|fault| Fault::Event(at, fault)));
        requests.chain(events).collect()
    }
}
