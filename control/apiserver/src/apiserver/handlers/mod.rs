//! What answers a request: `dispatch` finds it. Objects that are stored have one set of handlers for all types; subresources and
//! computed resources may have handlers of their own.

pub(crate) mod aggregation;
pub(crate) mod delete;
pub(crate) mod discovery;
pub(crate) mod dispatch;
pub(crate) mod documents;
pub(crate) mod health;
pub(crate) mod kubelet_client;
pub(crate) mod list;
pub(crate) mod metrics_page;
pub(crate) mod proxy;
pub(crate) mod read;
pub(crate) mod scale;
pub(crate) mod subresource;
pub(crate) mod virtual_resource;
pub(crate) mod watch;
pub(crate) mod watch_encoding;
pub(crate) mod websocket;
pub(crate) mod write;
