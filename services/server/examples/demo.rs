//! A complete server: `cargo run -p drover-server --example demo -- --help`.

use std::process::ExitCode;

use drover_proto::agent::v1::{
    GetInfoRequest, GetInfoResponse,
    agent_service_server::{AgentService, AgentServiceServer},
};
use drover_server::{Binary, Service, run, serve};
use serde::{Deserialize, Serialize};
use tonic::{Request, Response, Status};

/// Flags of this server.
#[derive(Debug, clap::Args, Serialize)]
struct Flags {
    /// Node to speak for
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    node_id: Option<String>,
}

/// Settings of this server.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Settings {
    node_id: String,
}

struct Demo(Settings);

#[tonic::async_trait]
impl AgentService for Demo {
    async fn get_info(
        &self,
        _: Request<GetInfoRequest>,
    ) -> Result<Response<GetInfoResponse>, Status> {
        Ok(Response::new(GetInfoResponse {
            node_id: self.0.node_id.clone(),
            ..Default::default()
        }))
    }
}

fn main() -> ExitCode {
    let binary = Binary {
        name: "demo",
        version: env!("CARGO_PKG_VERSION"),
        about: "Says which node it is",
        port: 7499,
    };
    run::<Flags, Settings, _>(binary, async |server, own, stop| {
        let service =
            Service::new(binary.name, binary.version).add(AgentServiceServer::new(Demo(own)));
        Ok(serve(service, &server, stop).await?)
    })
}
