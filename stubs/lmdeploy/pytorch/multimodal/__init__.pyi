from lmdeploy.pytorch.multimodal.data_type import MultiModalData as MultiModalData
