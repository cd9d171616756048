from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeRequest(_message.Message):
    __slots__ = ("model", "version")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("content_hash", "files")
    class File(_message.Message):
        __slots__ = ("name", "size_bytes", "blocks")
        NAME_FIELD_NUMBER: _ClassVar[int]
        SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
        BLOCKS_FIELD_NUMBER: _ClassVar[int]
        name: str
        size_bytes: int
        blocks: bytes
        def __init__(self, name: _Optional[str] = ..., size_bytes: _Optional[int] = ..., blocks: _Optional[bytes] = ...) -> None: ...
    CONTENT_HASH_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    content_hash: str
    files: _containers.RepeatedCompositeFieldContainer[DescribeResponse.File]
    def __init__(self, content_hash: _Optional[str] = ..., files: _Optional[_Iterable[_Union[DescribeResponse.File, _Mapping]]] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("model", "version", "content_hash", "file", "offset", "length")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CONTENT_HASH_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    content_hash: str
    file: str
    offset: int
    length: int
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., content_hash: _Optional[str] = ..., file: _Optional[str] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class ReadResponse(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...
