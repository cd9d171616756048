from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReplicaState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REPLICA_STATE_UNSPECIFIED: _ClassVar[ReplicaState]
    REPLICA_STATE_COLD: _ClassVar[ReplicaState]
    REPLICA_STATE_LOADING: _ClassVar[ReplicaState]
    REPLICA_STATE_WARMING: _ClassVar[ReplicaState]
    REPLICA_STATE_WARM: _ClassVar[ReplicaState]
    REPLICA_STATE_DRAINING: _ClassVar[ReplicaState]
    REPLICA_STATE_FAILED: _ClassVar[ReplicaState]
REPLICA_STATE_UNSPECIFIED: ReplicaState
REPLICA_STATE_COLD: ReplicaState
REPLICA_STATE_LOADING: ReplicaState
REPLICA_STATE_WARMING: ReplicaState
REPLICA_STATE_WARM: ReplicaState
REPLICA_STATE_DRAINING: ReplicaState
REPLICA_STATE_FAILED: ReplicaState

class ShardId(_message.Message):
    __slots__ = ("model", "version", "shard", "shard_count")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    SHARD_COUNT_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    shard: int
    shard_count: int
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., shard: _Optional[int] = ..., shard_count: _Optional[int] = ...) -> None: ...

class LoadRequest(_message.Message):
    __slots__ = ("shard",)
    SHARD_FIELD_NUMBER: _ClassVar[int]
    shard: ShardId
    def __init__(self, shard: _Optional[_Union[ShardId, _Mapping]] = ...) -> None: ...

class LoadResponse(_message.Message):
    __slots__ = ("replica",)
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    replica: Replica
    def __init__(self, replica: _Optional[_Union[Replica, _Mapping]] = ...) -> None: ...

class UnloadRequest(_message.Message):
    __slots__ = ("shard", "grace_s")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    shard: ShardId
    grace_s: float
    def __init__(self, shard: _Optional[_Union[ShardId, _Mapping]] = ..., grace_s: _Optional[float] = ...) -> None: ...

class UnloadResponse(_message.Message):
    __slots__ = ("replica",)
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    replica: Replica
    def __init__(self, replica: _Optional[_Union[Replica, _Mapping]] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusResponse(_message.Message):
    __slots__ = ("worker_id", "epoch", "replicas", "memory", "queue_depth", "draining")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    QUEUE_DEPTH_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    epoch: str
    replicas: _containers.RepeatedCompositeFieldContainer[Replica]
    memory: Memory
    queue_depth: int
    draining: bool
    def __init__(self, worker_id: _Optional[str] = ..., epoch: _Optional[str] = ..., replicas: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ..., memory: _Optional[_Union[Memory, _Mapping]] = ..., queue_depth: _Optional[int] = ..., draining: _Optional[bool] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("grace_s",)
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    grace_s: float
    def __init__(self, grace_s: _Optional[float] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Replica(_message.Message):
    __slots__ = ("shard", "state", "warmth", "content_hash", "generation", "warm_for_s", "reason", "bytes_read", "bytes_total")
    class WarmthEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    SHARD_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WARMTH_FIELD_NUMBER: _ClassVar[int]
    CONTENT_HASH_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    WARM_FOR_S_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BYTES_READ_FIELD_NUMBER: _ClassVar[int]
    BYTES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    shard: ShardId
    state: ReplicaState
    warmth: _containers.ScalarMap[str, float]
    content_hash: str
    generation: int
    warm_for_s: float
    reason: str
    bytes_read: int
    bytes_total: int
    def __init__(self, shard: _Optional[_Union[ShardId, _Mapping]] = ..., state: _Optional[_Union[ReplicaState, str]] = ..., warmth: _Optional[_Mapping[str, float]] = ..., content_hash: _Optional[str] = ..., generation: _Optional[int] = ..., warm_for_s: _Optional[float] = ..., reason: _Optional[str] = ..., bytes_read: _Optional[int] = ..., bytes_total: _Optional[int] = ...) -> None: ...

class Memory(_message.Message):
    __slots__ = ("free_bytes", "total_bytes")
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    free_bytes: int
    total_bytes: int
    def __init__(self, free_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ...) -> None: ...
