//! OpenAPI documents of what an API server serves: version 3 for each group version, version 2 for all together, as JSON
//! and, for version 2, in the protobuf form that client-go asks for.
//!
//! A document is made from [`GroupVersionResources`]s, which say what is served, and from the types of their objects. Pure; imports
//! [`crate::schema`], and of [`crate::protobuf`] the wire format. Documents are large and seldom asked for: nothing is kept
//! here, callers cache what they serve.
//!
//! Upstream: `k8s.io/kube-openapi/pkg/{builder,builder3}`, `k8s.io/apiserver/pkg/endpoints/installer.go` for the operations,
//! `k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder` for custom resources.

mod custom;
mod definitions;
mod descriptions;
mod document;
mod names;
mod operation;
mod parameters;
mod paths;
mod resource;
mod v2;
pub mod v2_conversion;
pub mod v2_merge;
pub mod v2_protobuf;

pub use descriptions::{Descriptions, LIST};
pub use document::Documents;
pub use resource::{GroupVersionResources, Gvk, Model, Resource, Subresource, SubresourceKind};

#[cfg(test)]
mod tests;
