//! The audit hook: receivers hear of each request when it is complete.

use std::fmt;

use super::{request_info::RequestInfo, user::User};

/// A completed request. Bodies and queries may hold secrets and are not part of it.
#[derive(Debug)]
pub struct AuditEvent<'a> {
    /// Who sent the request.
    pub user: &'a User,
    /// Whom it was sent as, if that is another.
    pub impersonated: Option<&'a User>,
    /// The verb.
    pub verb: &'a str,
    /// The path, decoded.
    pub path: &'a str,
    /// The HTTP status of the response.
    pub code: u16,
}

/// A receiver of audit events.
pub trait AuditSink: Send + Sync + fmt::Debug {
    /// Records a request; may not block.
    fn record(&self, event: &AuditEvent<'_>);
}

/// Tells all receivers of a request.
pub(super) fn record(
    sinks: &[std::sync::Arc<dyn AuditSink>],
    (user, impersonated): (&User, Option<&User>),
    info: &RequestInfo,
    code: u16,
) {
    let event = AuditEvent { user, impersonated, verb: &info.verb, path: &info.path, code };
    sinks.iter().for_each(|sink| sink.record(&event));
}
