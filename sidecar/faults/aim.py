"""Whether a fault that is asked for can strike anything that is known now. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sidecar.config.problems import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from router.model import EndpointRecord
    from sidecar.settings.faults import Fault

_SHOWN: Final = 10


def misses(fault: Fault, records: Iterable[EndpointRecord], tenant_header: str | None) -> tuple[str, ...]:
    """Return which fields of a fault name what is not known now, and what probably was meant.

    ``records`` are what the endpoints said last. Nothing is wrong with such a fault: what it names may yet come.
    """
    said = {record.id: record.replicas for record in records}
    told, where = [], ""
    if fault.endpoint and fault.endpoint not in said:
        told.append(_told("endpoint", fault.endpoint, "", said))
    elif fault.endpoint:
        said = {fault.endpoint: said[fault.endpoint]}
        where = f" on endpoint {fault.endpoint}"
    replicas = [replica for held in said.values() for replica in held]
    for field in ("model", "version", "shard"):
        wanted = getattr(fault, field)
        if wanted in ("", None):
            continue
        meant = [replica for replica in replicas if getattr(replica, field) == wanted]
        if meant:
            replicas, where = meant, f" of {field} {wanted}{where}"
        else:
            told.append(_told(field, str(wanted), where, (str(getattr(replica, field)) for replica in replicas)))
    if fault.tenant and tenant_header is None:
        told.append("tenant: policies.admission.tenant.header is null, so no request has one: this strikes nothing")
    return tuple(told)


def _told(field: str, wanted: str, where: str, known: Iterable[str]) -> str:
    names = sorted({name for name in known if name})
    text = f'{field}: no {field} "{wanted}"{where} is known now, so this strikes nothing until there is'
    meant = nearest(wanted, names)
    if meant is not None:
        return f'{text}; did you mean "{meant}"?'
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{text}; known: {', '.join(names[:_SHOWN]) or 'none'}{more}"
