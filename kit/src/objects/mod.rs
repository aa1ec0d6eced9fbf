//! What the API server and the node must read alike in objects of the API: which nodes a selector means, which taints
//! are tolerated, which labels a node may set, which claims a pod uses, what it asks for, what it gets where it says
//! nothing, what images are called. Pure; imports no client.

pub mod claims;
pub mod image;
pub mod node_labels;
pub mod node_selector;
pub mod pod_defaults;
pub mod requests;
pub mod resources;
pub mod tolerations;
