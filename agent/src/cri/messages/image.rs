//! Messages about images. Pure.

use super::{field::Hidden, messages, runtime::Texts};

messages! {
    /// The name of an image, its digest or its id.
    ImageSpec { image: String = 1 }

    /// Asks for images.
    ListImagesRequest { filter: Option<ImageFilter> = 1 }

    /// Which images.
    ImageFilter { image: Option<ImageSpec> = 1 }

    /// Images.
    ListImagesResponse { images: Vec<Image> = 1 }

    /// An image. A user is given by number, or else by name.
    Image {
        id: String = 1,
        repo_tags: Vec<String> = 2,
        repo_digests: Vec<String> = 3,
        size: u64 = 4,
        uid: Option<Int64Value> = 5,
        username: String = 6,
        pinned: bool = 8,
    }

    /// A number, where none is another thing than 0.
    Int64Value { value: i64 = 1 }

    /// Asks for one image.
    ImageStatusRequest { image: Option<ImageSpec> = 1, verbose: bool = 2 }

    /// One image; none if it is not in the store.
    ImageStatusResponse { image: Option<Image> = 1, info: Texts = 2 }

    /// Pulls an image.
    PullImageRequest { image: Option<ImageSpec> = 1, auth: Option<AuthConfig> = 2 }

    /// The image that was pulled.
    PullImageResponse { image_ref: String = 1 }

    /// Credentials of a registry.
    AuthConfig {
        username: String = 1,
        password: Hidden = 2,
        auth: Hidden = 3,
        server_address: String = 4,
        identity_token: Hidden = 5,
        registry_token: Hidden = 6,
    }
}
