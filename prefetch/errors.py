"""What ends a job: one sentence for people, made where the fault is found."""


class JobError(Exception):
    """A sentence that names the file, the object or the folder, and says what to do where something can be done."""


class Cancelled(Exception):
    """The job was cancelled, or the service stops; what is staged stays for a later run."""
