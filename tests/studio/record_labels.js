// Records the texts that are drawn in the cloud since the last frame began, as rectangles in pixels of the canvas. The cloud is drawn on a
// 2D canvas, because WebGL draws its labels as images; both take the labels from the same function.
{
  const { getContext } = HTMLCanvasElement.prototype
  const { clearRect, fillText } = CanvasRenderingContext2D.prototype
  const isCloud = (canvas) => canvas instanceof HTMLCanvasElement && 'ready' in canvas.dataset
  window.drawnLabels = []
  HTMLCanvasElement.prototype.getContext = function (kind, ...options) {
    return kind === 'webgl2' ? null : getContext.call(this, kind, ...options)
  }
  CanvasRenderingContext2D.prototype.clearRect = function (...box) {
    if (isCloud(this.canvas)) window.drawnLabels = []
    return clearRect.apply(this, box)
  }
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
    if (isCloud(this.canvas)) {
      const { width, fontBoundingBoxAscent, fontBoundingBoxDescent } = this.measureText(text)
      window.drawnLabels.push({ text, left: x, right: x + width, top: y - fontBoundingBoxAscent, bottom: y + fontBoundingBoxDescent })
    }
    return fillText.call(this, text, x, y)
  }
}
