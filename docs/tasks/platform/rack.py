#!/usr/bin/env python3
"""A platform in Python: every node is a process of this machine. It has no capability beyond the four calls.

    python3 rack.py [ADDRESS] [DIRECTORY]

A node is a record in DIRECTORY, written before its process is started, and a lock that the process holds for as long as
it lives. So it can be killed at any point: what was begun is found again, and nothing is made twice.
"""
import fcntl, json, os, re, signal, subprocess, sys, threading, time, uuid
from concurrent import futures
from pathlib import Path

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc import error_details_pb2 as details, status_pb2
from drover.platform.v1 import platform_service_pb2 as pb, platform_service_pb2_grpc as rpc

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7409"
DIRECTORY = Path(sys.argv[2] if len(sys.argv) > 2 else "nodes")
COMMAND = ["sleep", "infinity"]
MAX_BATCH = 10
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")


class Refused(Exception):
    """An error with its reason, its metadata, and the wrong fields."""

    def __init__(self, code, reason, message, metadata=None, fields=None):
        super().__init__(message)
        self.code, self.reason, self.metadata, self.fields = code, reason, metadata or {}, fields or {}

    def send(self, context):
        status = status_pb2.Status(code=self.code.value[0], message=str(self))
        if self.reason:
            info = details.ErrorInfo(reason=self.reason, domain="drover.dev", metadata=self.metadata)
            status.details.add().Pack(info)
        if self.fields:
            bad = details.BadRequest()
            for field, why in self.fields.items():
                bad.field_violations.add(field=field, description=why)
            status.details.add().Pack(bad)
        context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
        context.abort(self.code, str(self))


def invalid(fields):
    message = "; ".join(f"{field}: {why}" for field, why in fields.items())
    return Refused(grpc.StatusCode.INVALID_ARGUMENT, "", message, fields=fields)


def precondition(reason, message, metadata=None):
    return Refused(grpc.StatusCode.FAILED_PRECONDITION, reason, message, metadata)


def is_uuid(text):
    try:
        return str(uuid.UUID(text)) == text.lower()
    except ValueError:
        return False


def inexact(value, path, wrong):
    """Numbers without fraction beyond 2^53 have lost digits on the way here."""
    kind = value.WhichOneof("kind")
    if kind == "number_value" and not abs(value.number_value) <= 2**53:
        wrong[path] = "expected a number that is exact, at most 2^53"
    elif kind == "struct_value":
        for key, inner in value.struct_value.fields.items():
            inexact(inner, f"{path}.{key}", wrong)
    elif kind == "list_value":
        for index, inner in enumerate(value.list_value.values):
            inexact(inner, f"{path}[{index}]", wrong)


class Nodes:
    """The backend: records and processes."""

    def __init__(self):
        DIRECTORY.mkdir(parents=True, exist_ok=True)
        identity = DIRECTORY / "uid"
        if not identity.exists():
            self.write(identity, str(uuid.uuid4()))
        self.uid = "python/" + identity.read_text()

    @staticmethod
    def write(path, text):
        """Whole or not at all, also after a power cut."""
        beside = path.with_suffix(".new")
        with open(beside, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.rename(beside, path)

    def records(self):
        return {path.stem: json.loads(path.read_text()) for path in sorted(DIRECTORY.glob("*.json"))}

    def lock(self, node):
        """The lock of a node's process, or nothing while the process lives."""
        file = os.open(DIRECTORY / f"{node}.lock", os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except BlockingIOError:
            os.close(file)
            return None

    def runs(self, node):
        lock = self.lock(node)
        if lock is not None:
            os.close(lock)
        return lock is None

    def start(self, node):
        lock = self.lock(node)
        if lock is None:
            return
        pid = DIRECTORY / f"{node}.pid"
        script = 'echo $$ > "$1.new" && mv "$1.new" "$1" && shift && exec "$@"'
        subprocess.Popen(
            ["sh", "-c", script, "sh", str(pid), *COMMAND],
            pass_fds=[lock], start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        os.close(lock)
        while self.runs(node) and not pid.exists():
            time.sleep(0.001)

    def remove(self, node):
        pid = DIRECTORY / f"{node}.pid"
        if self.runs(node):
            os.kill(int(pid.read_text()), signal.SIGKILL)
            while self.runs(node):
                time.sleep(0.001)
        for suffix in ["pid", "lock", "json"]:
            (DIRECTORY / f"{node}.{suffix}").unlink(missing_ok=True)


class Platform(rpc.PlatformServiceServicer):
    def __init__(self):
        self.nodes, self.instance, self.mutex = Nodes(), str(uuid.uuid4()), threading.Lock()
        self.pages, self.observed = {}, 0

    # --- the four calls

    def get_platform(self, request):
        limits = pb.Limits(max_batch=MAX_BATCH, min_poll_interval=Duration(seconds=1), visibility_delay=Duration())
        return pb.GetPlatformResponse(platform=pb.Platform(
            uid=self.nodes.uid, instance_id=self.instance, name="python", kind="process", driver="python",
            version="0.1.0", scope={"directory": str(DIRECTORY.resolve())}, limits=limits, etag=self.instance,
            templates=[pb.TemplateEntry(version_requirement="*", template="process")],
        ))

    def discover(self, request):
        self.meant(request, required=False)
        if request.page_size < 0:
            raise invalid({"page_size": "expected 0 or more"})
        if request.node_ids and not request.cluster_id:
            raise invalid({"node_ids": "needs cluster_id"})
        if request.page_token:
            page = self.pages.pop(request.page_token, None)
            if page is None:
                raise Refused(grpc.StatusCode.ABORTED, "PAGE_TOKEN_EXPIRED", "list again from the first page")
            found, observed = page
        else:
            observed = self.now()
            found = [self.show(id, record) for id, record in self.nodes.records().items()]
            found = [node for node in found if request.cluster_id in ("", node.cluster_id)]
            if request.node_ids:
                found = [node for node in found if node.node_id in request.node_ids]
        size = min(request.page_size or 500, 1000)
        answer = pb.DiscoverResponse(nodes=found[:size], observe_time=observed, platform_etag=self.instance)
        if found[size:]:
            answer.next_page_token = str(uuid.uuid4())
            self.pages[answer.next_page_token] = (found[size:], observed)
            while len(self.pages) > 100:
                self.pages.pop(next(iter(self.pages)))
        return answer

    def provision(self, request, context):
        self.meant(request)
        self.check(request)
        fingerprint = [request.owner, request.cluster.id, request.group.path, request.spec_hash] + [
            [slot.id, slot.name, slot.ordinal] for slot in request.slots]
        if request.validate_only:
            return pb.ProvisionResponse()
        there = self.nodes.records()
        for record in there.values():
            if record["request_id"] == request.request_id and record["fingerprint"] != fingerprint:
                raise Refused(grpc.StatusCode.ALREADY_EXISTS, "REQUEST_ID_REUSED", "the request id was used for something else")
        answer = pb.ProvisionResponse()
        for slot in request.slots:
            id = f"{request.request_id}-{slot.index}"
            # Nothing is begun after the caller has gone.
            if id not in there and not context.is_active():
                raise Refused(grpc.StatusCode.DEADLINE_EXCEEDED, "", "the deadline is over")
            record = there.get(id) or {
                "request_id": request.request_id, "index": slot.index, "fingerprint": fingerprint,
                "owner": request.owner, "cluster": request.cluster.id, "group": request.group.path,
                "id": slot.id, "name": slot.name, "ordinal": slot.ordinal, "role": slot.role,
                "store_id": request.fence.store_id, "sequence": request.sequence, "spec_hash": request.spec_hash,
                "version": request.group.version, "class": request.group.node_class, "made": time.time(), "started": False,
            }
            if id not in there:
                self.nodes.write(DIRECTORY / f"{id}.json", json.dumps(record))
            if not record["started"]:
                self.nodes.start(id)
                record["started"] = True
                self.nodes.write(DIRECTORY / f"{id}.json", json.dumps(record))
            answer.nodes.append(self.show(id, record))
        return answer

    def deprovision(self, request):
        self.meant(request)
        wrong = self.check_fence(request.fence if request.HasField("fence") else None)
        for field in ["request_id", "owner", "node_request_id"]:
            if not is_uuid(getattr(request, field)):
                wrong[field] = "expected a UUID"
        if not NAME.match(request.cluster_id) or len(request.cluster_id) > 40:
            wrong["cluster_id"] = "expected the id of a cluster"
        if not request.HasField("index"):
            wrong["index"] = "expected a whole number"
        if not request.node_id:
            wrong["node_id"] = "expected the id of a node"
        if request.HasField("grace_period") and (request.grace_period.seconds < 0 or request.grace_period.nanos < 0):
            wrong["grace_period"] = "expected 0 or more"
        if wrong:
            raise invalid(wrong)
        record = self.nodes.records().get(request.node_id)
        if record is None:
            return pb.DeprovisionResponse(state=pb.DEPROVISION_STATE_GONE)
        if (record["owner"], record["cluster"]) != (request.owner, request.cluster_id):
            raise precondition("NODE_NOT_IN_CLUSTER", "the node belongs to somebody else; it was left alone")
        if (record["request_id"], record["index"]) != (request.node_request_id, request.index):
            raise precondition("SLOT_MISMATCH", "the node has another slot; it was left alone")
        self.nodes.remove(request.node_id)
        return pb.DeprovisionResponse(state=pb.DEPROVISION_STATE_GONE)

    # --- what they share

    def show(self, id, record):
        """A node that was started and does not run has died; one that was never started is half-made."""
        runs = self.nodes.runs(id)
        phase = pb.NODE_PHASE_RUNNING if runs else pb.NODE_PHASE_FAILED if record["started"] else pb.NODE_PHASE_PENDING
        node = pb.Node(
            cluster_id=record["cluster"], node_id=id, id=record["id"], name=record["name"], ordinal=record["ordinal"],
            role=record["role"], group=record["group"], phase=phase, ready=runs, store_id=record["store_id"],
            sequence=record["sequence"], spec_hash=record["spec_hash"], version=record["version"],
            node_class=record["class"], provider_id=f"python://{id}",
            message="its process has ended" if phase == pb.NODE_PHASE_FAILED else "",
        )
        node.slot.owner, node.slot.request_id, node.slot.index = record["owner"], record["request_id"], record["index"]
        node.create_time.FromMilliseconds(int(record["made"] * 1000))
        return node

    def now(self):
        """The time of this read, later than that of every read before."""
        self.observed = max(self.observed + 1, time.time_ns())
        time_stamp = Timestamp()
        time_stamp.FromNanoseconds(self.observed)
        return time_stamp

    def meant(self, request, required=True):
        uid, instance = request.expected_platform_uid, request.expected_instance_id
        if required and not uid:
            raise invalid({"expected_platform_uid": "expected the uid of this platform"})
        if uid and uid != self.nodes.uid:
            raise precondition("PLATFORM_MISMATCH", "this is another platform", {"platform_uid": self.nodes.uid})
        if instance and instance != self.instance:
            raise Refused(grpc.StatusCode.ABORTED, "PLATFORM_RESTARTED", "this is another start of the server",
                          {"instance_id": self.instance})

    @staticmethod
    def check_fence(fence):
        if fence is None:
            return {"fence": "expected who asks"}
        wrong = {}
        if not is_uuid(fence.store_id):
            wrong["fence.store_id"] = "expected a UUID"
        if fence.epoch == 0:
            wrong["fence.epoch"] = "expected 1 or more"
        return wrong

    def check(self, request):
        wrong = self.check_fence(request.fence if request.HasField("fence") else None)
        for field in ["owner", "request_id"]:
            if not is_uuid(getattr(request, field)):
                wrong[field] = "expected a UUID"
        if request.sequence == 0:
            wrong["sequence"] = "expected 1 or more"
        if not 1 <= len(request.spec_hash) <= 63:
            wrong["spec_hash"] = "expected 1 to 63 characters"
        if not 1 <= len(request.slots) <= MAX_BATCH:
            wrong["slots"] = f"expected 1 to {MAX_BATCH} slots"
        for at, slot in enumerate(request.slots):
            if not slot.HasField("index") or slot.index != at:
                wrong[f"slots[{at}].index"] = f"expected {at}"
            for field in ["id", "name"]:
                if not NAME.match(getattr(slot, field)) or len(getattr(slot, field)) > 100:
                    wrong[f"slots[{at}].{field}"] = "expected a name"
            if not slot.HasField("ordinal"):
                wrong[f"slots[{at}].ordinal"] = "expected a whole number"
            if slot.role not in (1, 2):
                wrong[f"slots[{at}].role"] = "expected active or standby"
        if not request.HasField("cluster"):
            wrong["cluster"] = "expected the cluster"
        elif not NAME.match(request.cluster.id) or len(request.cluster.id) > 40:
            wrong["cluster.id"] = "expected 1 to 40 characters a-z, A-Z, 0-9, hyphen, underscore, dot"
        if not request.HasField("group"):
            wrong["group"] = "expected the group"
        else:
            parts = request.group.path.split("/")
            if len(parts) > 8 or not all(NAME.match(part) for part in parts):
                wrong["group.path"] = "expected one to eight names with slashes between them"
        for of, struct in [("cluster.attributes", request.cluster.attributes), ("group.attributes", request.group.attributes),
                           ("group.properties", request.group.properties)]:
            for key, value in struct.fields.items():
                inexact(value, f"{of}.{key}", wrong)
        for at, spread in enumerate(request.group.placement.spread):
            for field, most in [("when_unsatisfiable", 2), ("scope", 2)]:
                if not 0 <= getattr(spread, field) <= most:
                    wrong[f"group.placement.spread[{at}].{field}"] = "expected a value of the enum"
        if wrong:
            raise invalid(wrong)
        self.check_capabilities(request)

    @staticmethod
    def check_capabilities(request):
        """What was never promised is refused, and never ignored."""
        placement = request.group.placement
        needs = {
            "SPREAD_REQUIRED": any(spread.when_unsatisfiable == 1 for spread in placement.spread),
            "SPREAD_PREFERRED": any(spread.when_unsatisfiable != 1 for spread in placement.spread),
            "FAILURE_DOMAINS": len(placement.failure_domains) > 0,
            "HOST_LABELS": placement.HasField("selector"),
            "NAMED_HOSTS": any(slot.HasField("host_id") for slot in request.slots),
            "STORAGE": request.HasField("storage"),
            "BOOTSTRAP": request.HasField("bootstrap"),
        }
        for capability, needed in needs.items():
            if needed:
                raise precondition("CAPABILITY_MISSING", f"this platform lacks {capability}", {"capability": capability})

    def call(self, handler, context, *arguments):
        """One call at a time, each refusal as an error with its details."""
        try:
            with self.mutex:
                return handler(*arguments)
        except Refused as refused:
            refused.send(context)

    def GetPlatform(self, request, context):
        return self.call(self.get_platform, context, request)

    def Discover(self, request, context):
        return self.call(self.discover, context, request)

    def Provision(self, request, context):
        return self.call(self.provision, context, request, context)

    def Deprovision(self, request, context):
        return self.call(self.deprovision, context, request)


if __name__ == "__main__":
    # Ended nodes are no zombies.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=16))
    rpc.add_PlatformServiceServicer_to_server(Platform(), server)
    if server.add_insecure_port(ADDRESS) == 0:
        sys.exit(f"{ADDRESS} is taken")
    server.start()
    print(f"serving on {ADDRESS}, nodes in {DIRECTORY}", flush=True)
    server.wait_for_termination()
