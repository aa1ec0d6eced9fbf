//! Serves what CustomResourceDefinitions define: names and conditions (`naming`), the resource of a definition
//! (`definition`), its columns (`columns`), the webhook that converts (`conversion_webhook`), and the end of its objects (`cleanup`).
//!
//! Writes through the API like every client; only the catalog is changed directly.

mod cleanup;
mod columns;
mod conversion_review;
mod conversion_webhook;
mod definition;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod naming;
mod scale;
mod watch;

#[cfg(test)]
pub(crate) mod tests;

pub(crate) use conversion_webhook::ConversionWebhooks;
pub(crate) use watch::CustomResources;
