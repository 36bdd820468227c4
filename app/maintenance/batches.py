"""What maintenance needs to carry batches on: the checks of the API, and how lines are cancelled."""

from __future__ import annotations

from contextlib import aclosing

from app.access.charges import Charges
from app.access.directory import Directory
from app.announcer import Announcer
from app.batches.expander import Dispatch, Expander
from app.batches.followers import doorbell_of
from app.batches.progress import BatchProgress
from app.batches.validator import Validator
from app.batches.writer import ResultWriter
from app.files.attachments import Attachments
from app.files.documents import DocumentReader
from app.responses.create.acceptor import RequestAcceptor
from app.responses.create.references import ReferenceLimits, ReferenceResolver
from app.responses.models.catalog import PermittedCatalogs
from app.responses.models.registered import RegisteredModels
from app.store.database import Database
from app.store.keys import SharedSealer
from app.store.operations import cancels
from app.streaming.pubsub import PubSub
from config.models import ModelCatalog
from config.settings import Settings


def batch_progress(
    db: Database,
    pubsub: PubSub,
    directory: Directory,
    announcer: Announcer,
    dispatch: Dispatch,
    documents: DocumentReader,
    catalog: ModelCatalog,
    settings: Settings,
) -> tuple[BatchProgress, PermittedCatalogs]:
    """Returns what carries batches on, and the catalogs whose `whole` follows the models file."""
    asked = directory if settings.asks_for_keys else None
    catalogs, sealer = PermittedCatalogs(catalog, asked), SharedSealer(db)
    limits = ReferenceLimits(settings.max_body_bytes, settings.max_context_bytes)
    shares = settings.asks_for_keys
    attachments = Attachments(db, documents, None, settings.max_body_bytes, shares=shares)
    references = ReferenceResolver(db, sealer, attachments, limits, shares=shares)
    charges, registered = Charges(db, asked), RegisteredModels(db)
    acceptor = RequestAcceptor(db, sealer, references, catalogs, registered, charges, settings)

    async def cancel_lines(batch_id: str) -> None:
        """What others hold has its turn at the next look."""
        async with aclosing(cancels.line_steps(db, batch_id)) as steps:
            async for ended in steps:
                await announcer.tell_all(ended)

    validator, expander = Validator(db, acceptor, settings), Expander(db, acceptor, dispatch, settings)

    async def tell_results(batch_id: str) -> None:
        await pubsub.ring(doorbell_of(batch_id))

    writer = ResultWriter(db)
    progress = BatchProgress(db, validator, expander, writer, cancel_lines, pubsub.tell_ends, tell_results)
    return progress, catalogs
