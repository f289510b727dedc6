//! Clouds by their settings.

use std::{fmt::Debug, path::Path, sync::Arc};

use async_trait::async_trait;
use drover_core::Result;
use drover_platform::{driver::Driver, templates::Templates};

/// The settings of a cloud's driver, which open it. Where a driver is opened only through them, a program that never makes
/// its settings has nothing of its SDK in it, whatever it is compiled with.
#[async_trait]
pub trait CloudBackend: Debug + Send + Sync {
    /// Opens the driver and its templates, which may be in a directory.
    async fn open(&self, templates: Option<&Path>) -> Result<(Arc<dyn Driver>, Templates)>;
}

/// Implements it for the settings of a driver.
macro_rules! opened_by_settings {
    ($($feature:literal $driver:ident)*) => {$(
        #[cfg(feature = $feature)]
        #[async_trait]
        impl CloudBackend for crate::drivers::$driver::Settings {
            async fn open(&self, templates: Option<&Path>) -> Result<(Arc<dyn Driver>, Templates)> {
                let cloud = crate::drivers::$driver::open(self.clone()).await?;
                let templates = crate::stores::templates(templates)?;
                let driver = crate::cloud::CloudDriver::new(cloud, self.common.clone())?;
                Ok((Arc::new(driver), templates))
            }
        }
    )*};
}

opened_by_settings!("aws" aws "gcp" gcp "digitalocean" digitalocean "metal" metal);
