//! Pods.

use drover_proto::kubernetes::v1::{self as api, pod_service_server::PodService};
use drover_server::access::Permission;
use futures::stream::BoxStream;
use tonic::{Request, Response, Status, Streaming};

use super::{Resources, answer, list::pages};
use crate::check;

#[tonic::async_trait]
impl PodService for Resources {
    async fn create_pod(
        &self,
        request: Request<api::CreatePodRequest>,
    ) -> Result<Response<api::CreatePodResponse>, Status> {
        let call = self.call(&request, Permission::ResourceChange);
        let done = async {
            let pod = check::create_pod(request.into_inner(), self.served())?;
            let metadata = pod.metadata.clone().unwrap_or_default();
            call.inside("pod", &metadata.namespace, &metadata.name)?;
            self.served().pod_policy.check(&pod)?;
            let pod = self.cluster().pods()?.create(pod).await?;
            Ok(api::CreatePodResponse { pod: Some(pod) })
        };
        answer(done.await)
    }

    async fn get_pod(
        &self,
        request: Request<api::GetPodRequest>,
    ) -> Result<Response<api::GetPodResponse>, Status> {
        let call = self.call(&request, Permission::ResourceRead);
        let done = async {
            let request = check::named(request.into_inner(), self.served())?;
            call.inside("pod", &request.namespace, &request.name)?;
            let pods = self.cluster().pods()?;
            let pod = pods.get(&request.namespace, &request.name).await?;
            Ok(api::GetPodResponse { pod: Some(pod) })
        };
        answer(done.await)
    }

    async fn list_pods(
        &self,
        request: Request<api::ListPodsRequest>,
    ) -> Result<Response<api::ListPodsResponse>, Status> {
        let call = self.call(&request, Permission::ResourceRead);
        let done = async {
            let pods = self.cluster().pods()?;
            pages(&call, request.into_inner(), |request| pods.list(request)).await
        };
        answer(done.await)
    }

    async fn delete_pod(
        &self,
        request: Request<api::DeletePodRequest>,
    ) -> Result<Response<api::DeletePodResponse>, Status> {
        let call = self.call(&request, Permission::ResourceChange);
        let done = async {
            let request = check::named(request.into_inner(), self.served())?;
            call.inside("pod", &request.namespace, &request.name)?;
            let pods = self.cluster().pods()?;
            let _permit = request.wait.then(|| call.wait_permit()).transpose()?;
            let existed = call.until_stop(pods.delete(request)).await?;
            Ok(api::DeletePodResponse { existed })
        };
        answer(done.await)
    }

    type WaitPodsStream = BoxStream<'static, Result<api::WaitPodsResponse, Status>>;

    async fn wait_pods(
        &self,
        request: Request<api::WaitPodsRequest>,
    ) -> Result<Response<Self::WaitPodsStream>, Status> {
        let call = self.call(&request, Permission::ResourceRead);
        let done = async {
            let request = check::wait_pods(request.into_inner(), self.served())?;
            call.inside("pod", &request.namespace, "*")?;
            let permit = call.wait_permit()?;
            let progress = self.cluster().pods()?.wait(request).await?;
            Ok(
                call.stream(progress, permit, |progress| api::WaitPodsResponse {
                    progress: Some(progress),
                }),
            )
        };
        answer(done.await)
    }

    type ExecStream = BoxStream<'static, Result<api::ExecResponse, Status>>;

    async fn exec(
        &self,
        request: Request<Streaming<api::ExecRequest>>,
    ) -> Result<Response<Self::ExecStream>, Status> {
        answer(self.run_command(request).await)
    }

    type RunScriptStream = BoxStream<'static, Result<api::RunScriptResponse, Status>>;

    async fn run_script(
        &self,
        request: Request<api::RunScriptRequest>,
    ) -> Result<Response<Self::RunScriptStream>, Status> {
        answer(self.run_text(request).await)
    }

    type ReadFileStream = BoxStream<'static, Result<api::ReadFileResponse, Status>>;

    async fn read_file(
        &self,
        request: Request<api::ReadFileRequest>,
    ) -> Result<Response<Self::ReadFileStream>, Status> {
        answer(self.file(request).await)
    }

    type StreamLogsStream = BoxStream<'static, Result<api::StreamLogsResponse, Status>>;

    async fn stream_logs(
        &self,
        request: Request<api::StreamLogsRequest>,
    ) -> Result<Response<Self::StreamLogsStream>, Status> {
        answer(self.log(request).await)
    }
}
