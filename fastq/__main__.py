"""`python -m fastq` is `fastqctl`."""

from fastq.ctl import main

if __name__ == "__main__":
    main(prog_name="python -m fastq")
