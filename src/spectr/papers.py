"""The papers behind the rules, as BibTeX.

Rules and couplings name a paper by its key; this module knows no rules, and which of them cites what.
"""

from dataclasses import dataclass
from textwrap import dedent

from spectr.errors import UnknownNameError
from spectr.registry import nearest

__all__ = ["PAPERS", "Paper", "bibtex"]


@dataclass(frozen=True, slots=True)
class Paper:
    """One reference: its key, how a sentence names it, its BibTeX entry."""

    key: str
    short: str
    bibtex: str


def bibtex(*keys: str) -> str:
    """The entries of `keys` in the order given, each once; of all papers when no key is given.

    >>> print(bibtex("stern2018"))
    @inproceedings{stern2018,
      title     = {Blockwise Parallel Decoding for Deep Autoregressive Models},
      author    = {Stern, Mitchell and Shazeer, Noam and Uszkoreit, Jakob},
      booktitle = {Advances in Neural Information Processing Systems},
      volume    = {31},
      year      = {2018}
    }
    >>> bibtex("stern2017")
    Traceback (most recent call last):
    spectr.errors.UnknownNameError: no paper has the key 'stern2017'; did you mean stern2018? Known: sun2023spectr, ...
    """
    return "\n\n".join(_paper(key).bibtex for key in dict.fromkeys(keys or PAPERS))


def _paper(key: str) -> Paper:
    if key not in PAPERS:
        raise UnknownNameError(f"no paper has the key {key!r}; {nearest(key, list(PAPERS))}")
    return PAPERS[key]


def _entry(short: str, text: str) -> Paper:
    text = dedent(text).strip()
    return Paper(key=text[text.index("{") + 1 : text.index(",")], short=short, bibtex=text)


_ENTRIES = (
    _entry(
        "Sun et al. 2023",
        """
        @inproceedings{sun2023spectr,
          title     = {{SpecTr}: Fast Speculative Decoding via Optimal Transport},
          author    = {Sun, Ziteng and Suresh, Ananda Theertha and Ro, Jae Hun and Beirami, Ahmad and Jain, Himanshu
                       and Yu, Felix},
          booktitle = {Advances in Neural Information Processing Systems},
          volume    = {36},
          year      = {2023},
          eprint    = {2310.15141},
          archivePrefix = {arXiv}
        }
        """,
    ),
    _entry(
        "Leviathan et al. 2023",
        """
        @inproceedings{leviathan2023,
          title     = {Fast Inference from Transformers via Speculative Decoding},
          author    = {Leviathan, Yaniv and Kalman, Matan and Matias, Yossi},
          booktitle = {International Conference on Machine Learning},
          year      = {2023},
          eprint    = {2211.17192},
          archivePrefix = {arXiv}
        }
        """,
    ),
    _entry(
        "Chen et al. 2023",
        """
        @article{chen2023,
          title     = {Accelerating Large Language Model Decoding with Speculative Sampling},
          author    = {Chen, Charlie and Borgeaud, Sebastian and Irving, Geoffrey and Lespiau, Jean-Baptiste
                       and Sifre, Laurent and Jumper, John},
          journal   = {arXiv preprint arXiv:2302.01318},
          year      = {2023}
        }
        """,
    ),
    _entry(
        "Yin et al. 2024",
        """
        @inproceedings{yin2024,
          title     = {A Theoretical Perspective for Speculative Decoding Algorithm},
          author    = {Yin, Ming and Chen, Minshuo and Huang, Kaixuan and Wang, Mengdi},
          booktitle = {Advances in Neural Information Processing Systems},
          volume    = {37},
          year      = {2024},
          eprint    = {2411.00841},
          archivePrefix = {arXiv}
        }
        """,
    ),
    _entry(
        "Miao et al. 2024",
        """
        @inproceedings{miao2024specinfer,
          title     = {{SpecInfer}: Accelerating Large Language Model Serving with Tree-based Speculative Inference
                       and Verification},
          author    = {Miao, Xupeng and Oliaro, Gabriele and Zhang, Zhihao and Cheng, Xinhao and Wang, Zeyu
                       and Zhang, Zhengxin and Wong, Rae Ying Yee and Zhu, Alan and Yang, Lijie and Shi, Xiaoxiang
                       and others},
          booktitle = {Proceedings of the 29th ACM International Conference on Architectural Support for Programming
                       Languages and Operating Systems, Volume 3},
          pages     = {932--949},
          year      = {2024},
          eprint    = {2305.09781},
          archivePrefix = {arXiv}
        }
        """,
    ),
    _entry(
        "Sun et al. 2024",
        """
        @inproceedings{sun2024block,
          title     = {Block Verification Accelerates Speculative Decoding},
          author    = {Sun, Ziteng and Mendlovic, Uri and Leviathan, Yaniv and Aharoni, Asaf and Ro, Jae Hun
                       and Beirami, Ahmad and Suresh, Ananda Theertha},
          booktitle = {International Conference on Learning Representations},
          year      = {2025},
          eprint    = {2403.10444},
          archivePrefix = {arXiv}
        }
        """,
    ),
    _entry(
        "Weng et al. 2025",
        """
        @inproceedings{weng2025traversal,
          title     = {Traversal Verification for Speculative Tree Decoding},
          author    = {Weng, Yepeng and Hu, Qiao and Chen, Xujie and Liu, Li and Mei, Dianwen and Qiu, Huishi
                       and Tian, Jiang and Shi, Zhongchao},
          booktitle = {Advances in Neural Information Processing Systems},
          year      = {2025},
          eprint    = {2505.12398},
          archivePrefix = {arXiv}
        }
        """,
    ),
    _entry(
        "Daliri et al. 2024",
        """
        @article{daliri2024,
          title     = {Coupling without Communication and Drafter-Invariant Speculative Decoding},
          author    = {Daliri, Majid and Musco, Christopher and Suresh, Ananda Theertha},
          journal   = {arXiv preprint arXiv:2408.07978},
          year      = {2024}
        }
        """,
    ),
    _entry(
        "Kobus and Gündüz 2025",
        r"""
        @inproceedings{kobus2025,
          title     = {Speculative Sampling via Exponential Races},
          author    = {Kobus, Szymon and G{\"u}nd{\"u}z, Deniz},
          booktitle = {Findings of the Association for Computational Linguistics: ACL 2025},
          pages     = {18189--18204},
          year      = {2025},
          eprint    = {2504.15475},
          archivePrefix = {arXiv}
        }
        """,
    ),
    _entry(
        "Rowan et al. 2025",
        """
        @inproceedings{rowan2025,
          title     = {List-Level Distribution Coupling with Applications to Speculative Decoding and Lossy
                       Compression},
          author    = {Rowan, Joseph and Phan, Buu and Khisti, Ashish},
          booktitle = {Advances in Neural Information Processing Systems},
          year      = {2025},
          eprint    = {2506.05632},
          archivePrefix = {arXiv}
        }
        """,
    ),
    _entry(
        "Khisti et al. 2025",
        """
        @inproceedings{khisti2025,
          title     = {Multi-Draft Speculative Sampling: Canonical Decomposition and Theoretical Limits},
          author    = {Khisti, Ashish and Ebrahimi, M. Reza and Dbouk, Hassan and Behboodi, Arash
                       and Memisevic, Roland and Louizos, Christos},
          booktitle = {International Conference on Learning Representations},
          year      = {2025},
          eprint    = {2410.18234},
          archivePrefix = {arXiv}
        }
        """,
    ),
    _entry(
        "Hu et al. 2025",
        """
        @inproceedings{hu2025,
          title     = {Towards Optimal Multi-draft Speculative Decoding},
          author    = {Hu, Zhengmian and Zheng, Tong and Viswanathan, Vignesh and Chen, Ziyi and Rossi, Ryan A.
                       and Wu, Yihan and Manocha, Dinesh and Huang, Heng},
          booktitle = {International Conference on Learning Representations},
          year      = {2025},
          eprint    = {2502.18779},
          archivePrefix = {arXiv}
        }
        """,
    ),
    _entry(
        "Jeon et al. 2024",
        """
        @article{jeon2024,
          title     = {Recursive Speculative Decoding: Accelerating {LLM} Inference via Sampling Without Replacement},
          author    = {Jeon, Wonseok and Gagrani, Mukul and Goel, Raghavv and Park, Junyoung and Lee, Mingu
                       and Lott, Christopher},
          journal   = {arXiv preprint arXiv:2402.14160},
          year      = {2024}
        }
        """,
    ),
    _entry(
        "Stern et al. 2018",
        """
        @inproceedings{stern2018,
          title     = {Blockwise Parallel Decoding for Deep Autoregressive Models},
          author    = {Stern, Mitchell and Shazeer, Noam and Uszkoreit, Jakob},
          booktitle = {Advances in Neural Information Processing Systems},
          volume    = {31},
          year      = {2018}
        }
        """,
    ),
    _entry(
        "spectr",
        """
        @software{spectr,
          title     = {spectr: Lossless Multi-Draft Speculative Decoding},
          author    = {{The spectr authors}},
          year      = {2026},
          license   = {Apache-2.0}
        }
        """,
    ),
)

PAPERS: dict[str, Paper] = {paper.key: paper for paper in _ENTRIES}
