//! Terraform with the provider of DigitalOcean, if both are there.
//!
//! The provider is the one that a development override of the CLI configuration names, as `TF_CLI_CONFIG_FILE` sets it, and
//! otherwise the newest of the registry.

use std::{path::Path, process::Output, time::Duration};

use tempfile::TempDir;
use tokio::{
    process::Command,
    time::{Instant, timeout},
};

use super::PATIENCE;

/// How many resources Terraform changes at once; its default is 10.
const PARALLELISM: &str = "-parallelism=200";
/// The provider repeats refused calls, by default 4 times, after which the apply fails; under the API's limit of calls a
/// minute it takes more.
const CONFIGURATION: &str = r#"
terraform {
  required_providers {
    digitalocean = { source = "digitalocean/digitalocean" }
  }
}
variable "endpoint" { type = string }
variable "token" { type = string }
variable "droplets" { type = number }
provider "digitalocean" {
  api_endpoint   = var.endpoint
  token          = var.token
  http_retry_max = 100
}
resource "digitalocean_droplet" "web" {
  count  = var.droplets
  name   = "web-${count.index}"
  region = "REGION"
  size   = "SIZE"
  image  = "IMAGE"
}
"#;
const HOW: &str = "Terraform must be on the PATH (https://developer.hashicorp.com/terraform/install). \
    It takes the provider from registry.terraform.io. Where that cannot be reached, build one with Go from \
    https://github.com/digitalocean/terraform-provider-digitalocean, whose dependencies are in its folder `vendor`, \
    (`go build -mod=vendor -o DIRECTORY/terraform-provider-digitalocean`), write \
    `provider_installation { dev_overrides { \"digitalocean/digitalocean\" = \"DIRECTORY\" } direct {} }` to a file, and \
    set TF_CLI_CONFIG_FILE to its path";

pub(super) struct Terraform {
    directory: TempDir,
    /// As `Terraform v1.11.4`.
    pub(super) version: String,
}

/// What is made, and where.
pub(super) struct Droplets<'a> {
    pub(super) region: &'a str,
    pub(super) size: &'a str,
    pub(super) image: &'a str,
}

impl Terraform {
    /// # Errors
    /// What is missing, and how to get it.
    pub(super) async fn find(droplets: &Droplets<'_>) -> Result<Self, String> {
        let directory = tempfile::tempdir().unwrap();
        let configuration = CONFIGURATION
            .replace("REGION", droplets.region)
            .replace("SIZE", droplets.size)
            .replace("IMAGE", droplets.image);
        std::fs::write(directory.path().join("main.tf"), configuration).unwrap();
        let started = run(directory.path(), &["version"]).await;
        let version = match started {
            Ok(output) if output.status.success() => text(&output.stdout),
            Ok(output) => return Err(format!("terraform fails: {}. {HOW}", said(&output))),
            Err(error) => return Err(format!("terraform cannot be started: {error}. {HOW}")),
        };
        let version = version.lines().next().unwrap_or_default().to_owned();
        // Succeeds with a development override, with which there is nothing to install; `init` would go to the
        // registry all the same.
        let validate = ["validate", "-no-color"];
        if !succeeds(directory.path(), &validate).await {
            let init = ["init", "-input=false", "-no-color"];
            let output = run(directory.path(), &init).await.unwrap();
            if !output.status.success() {
                return Err(format!(
                    "{version} gets no provider of DigitalOcean: {}. {HOW}",
                    said(&output)
                ));
            }
        }
        Ok(Self { directory, version })
    }

    /// Measures `terraform apply` of so many droplets without an earlier state, from its start to its end.
    pub(super) async fn apply(&self, endpoint: &str, token: &str, droplets: u32) -> Duration {
        for file in ["terraform.tfstate", "terraform.tfstate.backup"] {
            // Fails if there is none.
            let _ = std::fs::remove_file(self.directory.path().join(file));
        }
        self.change("apply", endpoint, token, droplets).await
    }

    /// Measures `terraform destroy` of all that the last apply has made.
    pub(super) async fn destroy(&self, endpoint: &str, token: &str, droplets: u32) -> Duration {
        self.change("destroy", endpoint, token, droplets).await
    }

    async fn change(&self, what: &str, endpoint: &str, token: &str, droplets: u32) -> Duration {
        let variables = [
            format!("-var=endpoint={endpoint}"),
            format!("-var=token={token}"),
            format!("-var=droplets={droplets}"),
        ];
        let mut arguments = vec![
            what,
            "-auto-approve",
            "-input=false",
            "-no-color",
            PARALLELISM,
        ];
        arguments.extend(variables.iter().map(String::as_str));
        let began = Instant::now();
        let output = timeout(PATIENCE, run(self.directory.path(), &arguments));
        let output = output.await.expect("terraform does not end").unwrap();
        let took = began.elapsed();
        assert!(
            output.status.success(),
            "terraform {what}: {}",
            said(&output)
        );
        took
    }
}

async fn succeeds(directory: &Path, arguments: &[&str]) -> bool {
    let output = run(directory, arguments).await;
    output.is_ok_and(|output| output.status.success())
}

async fn run(directory: &Path, arguments: &[&str]) -> std::io::Result<Output> {
    Command::new("terraform")
        .args(arguments)
        .current_dir(directory)
        // No question about newer versions to another server.
        .env("CHECKPOINT_DISABLE", "1")
        .env("TF_IN_AUTOMATION", "1")
        .stdin(std::process::Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
}

/// The error, on one line.
fn said(output: &Output) -> String {
    let errors = text(&output.stderr);
    let words = errors
        .split_whitespace()
        .filter(|word| word.chars().any(|c| c.is_ascii_graphic()));
    let line: Vec<&str> = words.take(80).collect();
    line.join(" ")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
